"""How many steps a run has, and which images each of them takes, all processes together."""

from dataclasses import dataclass

from torch import Tensor

from verydeep.config import RunConfig
from verydeep.data import epoch_order
from verydeep.errors import UsageError


@dataclass(frozen=True)
class Plan:
    """The steps of a run.

    Args:    set_size: images of the training set
             num_images: those that an epoch uses; the others of its order sit it out
             batch_size: images a micro-batch
             accumulate: micro-batches a step
             total_steps: of the whole run
             seed: of the order
             note: what was decided about the last batch, for the user; None if nothing was
    """

    set_size: int
    num_images: int
    batch_size: int
    accumulate: int
    total_steps: int
    seed: int
    note: str | None = None

    @property
    def largest_batch(self) -> int:
        """Images of a micro-batch: a set may be smaller than a batch."""
        return min(self.batch_size, self.num_images)

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_images // (self.batch_size * self.accumulate))

    def epoch_of(self, step: int) -> int:
        return step // self.steps_per_epoch

    def steps_of_epoch(self, *, from_step: int) -> list[tuple[Tensor, ...]]:
        """Steps from `from_step` to the end of its epoch or of the run: each a tuple of micro-batches of indices."""
        epoch = self.epoch_of(from_step)
        order = epoch_order(self.set_size, seed=self.seed, epoch=epoch)[: self.num_images]
        steps = order.split(min(self.batch_size * self.accumulate, self.num_images))
        first = from_step - epoch * self.steps_per_epoch
        left = self.total_steps - from_step
        return [step.split(self.largest_batch) for step in steps[first : first + left]]

    def ends_epoch(self, steps: int) -> bool:
        """Whether an epoch is complete once `steps` steps are done."""
        return steps % self.steps_per_epoch == 0

    def identity(self) -> dict[str, int]:
        """What a resumed run must have in common with the one it goes on with."""
        return {
            "training images": self.set_size,
            "steps an epoch": self.steps_per_epoch,
            "steps in all": self.total_steps,
        }


def make_plan(config: RunConfig, num_images: int, *, least_batch: int = 1) -> Plan:
    """The plan of a resolved config on a training set.

    An incomplete last batch is kept, or dropped if the config says so; one that is too small for the network is dropped
    and the plan's note says it: the one case in which the plan depends on the number of processes. A set smaller than a
    batch is one batch.

    Args:    least_batch: images that a batch needs: 2 a process with batch norm, whose variance of one image is noise
    Raises:  UsageError: if the training set has fewer images than that.
    """
    assert config.batch_size is not None and config.accumulate is not None
    if num_images < least_batch:
        raise UsageError(
            f"data {config.data}: {num_images} training images; the network needs {least_batch} a batch "
            "(batch norm on one image a process has no variance to speak of); give more images, or --norm group"
        )
    if config.batch_size < least_batch:
        raise UsageError(
            f"batch_size {config.batch_size}: batch norm needs {least_batch} images; nearest {least_batch}"
        )
    used, note = num_images, None
    rest = num_images % config.batch_size
    if num_images > config.batch_size and rest and (config.last_batch == "drop" or rest < least_batch):
        used -= rest
        if config.last_batch != "drop":
            note = (
                f"the last batch of an epoch would have {rest} image(s), batch norm needs {least_batch}: it is dropped "
                f"({used} of {num_images} images an epoch, others each time)"
            )
    steps_per_epoch = -(-used // (config.batch_size * config.accumulate))
    total_steps = config.steps if config.steps is not None else (config.epochs or 1) * steps_per_epoch
    return Plan(num_images, used, config.batch_size, config.accumulate, total_steps, config.seed, note)
