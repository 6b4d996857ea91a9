"""mixup and cutmix: the blend against its equation, the draws as functions of (seed, step)."""

import pytest
import torch

from verydeep.config import RunConfig
from verydeep.training.mixup import make_mixup


def batches(count: int = 2) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(count, 6, 3, 8, 8, generator=generator).unbind()
    return [(one.contiguous(memory_format=torch.channels_last), torch.arange(6) % 4) for one in images]


def blended(step: int = 0, seed: int = 0, **alphas) -> list[tuple[torch.Tensor, torch.Tensor]]:
    mixup = make_mixup(RunConfig(seed=seed, **alphas).resolved(), 4)
    assert mixup is not None
    return list(mixup(batches(), step=step))


def test_nothing_is_blended_unless_asked_for():
    assert make_mixup(RunConfig().resolved(), 4) is None


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_images_and_labels_have_the_same_share(kind: str):
    for (images, labels), (blend, shares) in zip(batches(), blended(**{kind: 1.0}), strict=True):
        other, own = images.roll(1, 0), torch.nn.functional.one_hot(labels, 4).float()
        share = shares[1, 1].item()  # image 1 is of class 1, the one before it of class 0
        torch.testing.assert_close(shares, share * own + (1 - share) * own.roll(1, 0))
        if kind == "mixup":
            torch.testing.assert_close(blend, share * images + (1 - share) * other)
        else:
            kept = (blend == images).all(1)  # (N, H, W)
            assert torch.equal(blend, torch.where(kept[:, None], images, other))
            assert torch.equal(kept, kept[:1].expand_as(kept)) and kept[0].float().mean().item() == pytest.approx(share)
        assert blend.is_contiguous(memory_format=torch.channels_last)


def test_draws_are_functions_of_seed_and_step_and_leave_the_generator():
    before = torch.get_rng_state()
    one, again = blended(step=3, mixup=1.0, cutmix=1.0), blended(step=3, mixup=1.0, cutmix=1.0)
    assert torch.equal(before, torch.get_rng_state())
    for ours, theirs in zip(one, again, strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    others = [blended(step=4, mixup=1.0, cutmix=1.0), blended(step=3, seed=1, mixup=1.0, cutmix=1.0)]
    assert all(not torch.equal(one[0][0], other[0][0]) for other in others)
    assert not torch.equal(one[0][1], one[1][1])  # micro-batches draw apart


def test_of_both_each_is_taken_half_of_the_time():
    """A blend by mixup has a value between the two in each pixel; by cutmix one of the two."""
    mixup = make_mixup(RunConfig(mixup=1.0, cutmix=1.0).resolved(), 4)
    images, labels = batches(1)[0]
    cut = 0
    for step in range(100):
        ((blend, _),) = mixup([(images, labels)], step=step)
        cut += bool(((blend == images) | (blend == images.roll(1, 0))).all())
    assert 30 <= cut <= 70
