"""What a run needs before its first step: its data, its plan, and the batches of a step."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from verydeep.config import RunConfig
from verydeep.data import Data, load_data
from verydeep.errors import UsageError
from verydeep.training.distributed import World
from verydeep.training.plan import Plan, make_plan


@dataclass(frozen=True)
class StepBatches:
    """The images of one step: those of all processes by number, this process's as micro-batches."""

    num_images: int
    num_micro_batches: int
    batches: Iterator[tuple[Tensor, Tensor]]


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
