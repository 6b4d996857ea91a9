"""What a run needs before its first step: its data, its plan, and the batches of a step."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from torch import Tensor, nn

from verydeep.config import RunConfig
from verydeep.data import Data, Split, load_data
from verydeep.errors import UsageError
from verydeep.training.distributed import World, shard
from verydeep.training.mixup import Mixup
from verydeep.training.plan import Plan, make_plan


@dataclass(frozen=True)
class StepBatches:
    """The images of one step: those of all processes by number, this process's as micro-batches."""

    num_images: int
    num_micro_batches: int
    batches: Iterator[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Stream:
    """The training images as this process's steps take them: in the plan's order, cut into shards, blended.

    Args:    group_size: images a batch-norm group, which no shard cuts
             mixup: None if nothing is blended
    """

    split: Split
    plan: Plan
    world: World
    group_size: int
    mixup: Mixup | None

    def rest_of_epoch(self, *, from_step: int) -> Iterator[StepBatches]:
        """The steps that are left of an epoch."""
        steps = self.plan.steps_of_epoch(from_step=from_step)
        shards = [[self._shard(indices) for indices in micro_batches] for micro_batches in steps]
        stream = self._batches([indices for micro_batches in shards for indices in micro_batches], step=from_step)
        for number, micro_batches in enumerate(steps, start=from_step):
            batches = self._blended(islice(stream, len(micro_batches)), step=number)
            yield StepBatches(sum(map(len, micro_batches)), len(micro_batches), batches)

    def of_step(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The micro-batches of one step, again."""
        shards = [self._shard(indices) for indices in self.plan.steps_of_epoch(from_step=step)[0]]
        return self._blended(self._batches(shards, step=step), step=step)

    def _batches(self, shards: list[Tensor], *, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.split.batches(shards, epoch=self.plan.epoch_of(step), device=self.world.device))

    def _blended(self, batches: Iterator[tuple[Tensor, Tensor]], *, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        return batches if self.mixup is None else self.mixup(batches, step=step)

    def _shard(self, indices: Tensor) -> Tensor:
        return shard(indices, rank=self.world.rank, size=self.world.size, group_size=self.group_size)


def plan_of(config: RunConfig, model: nn.Module, num_images: int, world: World) -> Plan:
    """The plan of the run on these processes.

    Raises:  UsageError: if a batch has fewer batch-norm groups than there are processes, which would make them smaller.
    """
    assert config.batch_size is not None
    if config.bn_group_size is not None and world.size > 1:
        groups = -(-config.batch_size // config.bn_group_size)
        if groups < world.size:
            raise UsageError(
                f"bn_group_size {config.bn_group_size} on {world.size} processes: a batch of {config.batch_size} has "
                f"{groups} groups, each process needs one; nearest {config.batch_size // world.size}"
            )
    has_batch_norm = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return make_plan(config, num_images, least_batch=world.size * (2 if has_batch_norm else 1))


def load_data_of(config: RunConfig) -> Data:
    """The data set of a resolved config."""
    return load_data(
        config.data,
        image_size=config.image_size,
        max_images=config.max_images,
        validation=config.validation,
        seed=config.seed,
        crop_padding=config.crop_padding,
        flip=config.flip,
        augmentation=config.augmentation or "scale+aspect",
        color_jitter=config.color_jitter or "none",
        rand_augment=config.rand_augment or 0,
        random_erasing=config.random_erasing or 0.0,
        mean=config.mean,
        std=config.std,
        bad_images=config.bad_images,
        workers=config.workers,
        root=config.data_root,
    )


def check_early_stop(config: RunConfig, data: Data) -> None:
    """Refuse to end a run by images that are not there to choose by.

    Raises:  UsageError: if the run stops early and has no validation images.
    """
    if config.early_stop is not None and data.validation is None:
        assert data.train is not None
        tenth = max(1, len(data.train) // 10)
        raise UsageError(
            f"early_stop {config.early_stop}: needs validation images, for the test set never chooses; give "
            f"--validation, such as {tenth}, a tenth of the training images"
        )
