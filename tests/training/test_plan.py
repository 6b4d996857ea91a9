"""How many steps, and which images: every image once an epoch, accumulation, incomplete batches."""

import pytest
import torch

from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.training.distributed import shard
from verydeep.training.plan import make_plan


def plan_of(num_images: int, *, least_batch: int = 1, **changes):
    return make_plan(RunConfig(**changes).resolved(), num_images, least_batch=least_batch)


def test_five_micro_batches_by_two_are_three_steps():
    plan = plan_of(10, batch_size=2, accumulate=2, epochs=1)
    steps = plan.steps_of_epoch(from_step=0)
    assert plan.total_steps == 3
    assert [[len(batch) for batch in step] for step in steps] == [[2, 2], [2, 2], [2]]


def test_zero_accumulation_is_an_error():
    with pytest.raises(UsageError, match="accumulate 0: must be at least 1"):
        RunConfig(accumulate=0)


def test_an_epoch_has_every_image_once_and_epochs_differ():
    plan = plan_of(103, batch_size=8, epochs=2)
    epochs = [torch.cat([b for step in plan.steps_of_epoch(from_step=first) for b in step]) for first in (0, 13)]
    for order in epochs:
        assert sorted(order.tolist()) == list(range(103))
    assert epochs[0].tolist() != epochs[1].tolist()


def test_steps_from_the_middle_are_the_rest_of_the_same_epoch():
    plan = plan_of(103, batch_size=8, epochs=2)
    whole, rest = plan.steps_of_epoch(from_step=13), plan.steps_of_epoch(from_step=17)
    assert [step[0].tolist() for step in whole[4:]] == [step[0].tolist() for step in rest]


def test_a_run_ends_in_the_middle_of_an_epoch():
    plan = plan_of(103, batch_size=8, steps=15)
    assert len(plan.steps_of_epoch(from_step=13)) == 2


def test_a_last_batch_of_one_image_with_batch_norm_is_dropped_and_said():
    plan = plan_of(65, batch_size=32, epochs=1, least_batch=2)
    assert plan.total_steps == 2 and "dropped" in plan.note
    assert sum(len(b) for step in plan.steps_of_epoch(from_step=0) for b in step) == 64


def test_a_last_batch_is_kept_or_dropped_as_asked():
    assert plan_of(70, batch_size=32, epochs=1, least_batch=2).total_steps == 3
    dropped = plan_of(70, batch_size=32, epochs=1, last_batch="drop")
    assert dropped.total_steps == 2 and dropped.note is None


def test_a_set_smaller_than_a_batch_is_one_batch():
    plan = plan_of(5, batch_size=64, steps=3, least_batch=2)
    assert [len(plan.steps_of_epoch(from_step=step)[0][0]) for step in range(3)] == [5, 5, 5]


def test_too_few_images_or_too_small_a_batch_are_errors():
    with pytest.raises(UsageError, match="1 training images"):
        plan_of(1, least_batch=2)
    with pytest.raises(UsageError, match="batch_size 1: batch norm needs 2 images; nearest 2"):
        plan_of(100, batch_size=1, least_batch=2)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("num_images", [1, 7, 64, 80, 129, 193])
@pytest.mark.parametrize("group_size", [1, 64])
def test_shards_are_the_batch_in_order(size: int, num_images: int, group_size: int):
    indices = torch.arange(num_images)
    shards = [shard(indices, rank=rank, size=size, group_size=group_size) for rank in range(size)]
    assert torch.cat(shards).tolist() == indices.tolist()
    if num_images >= size:
        assert group_size > 1 or max(map(len, shards)) - min(map(len, shards)) <= 1


@pytest.mark.parametrize("num_images", [128, 130, 193, 257, 300])
@pytest.mark.parametrize("size", [2, 3])
def test_shards_cut_their_groups_where_one_process_does(num_images: int, size: int):
    """GhostBatchNorm2d cuts n images into ceil(n / 64) parts: the same parts, whoever has them."""

    def groups(indices):
        return [part.tolist() for part in indices.tensor_split(-(-len(indices) // 64))]

    indices = torch.arange(num_images)
    shared = [group for rank in range(size) for group in groups(shard(indices, rank=rank, size=size, group_size=64))]
    if len(groups(indices)) >= size:
        assert shared == groups(indices)
