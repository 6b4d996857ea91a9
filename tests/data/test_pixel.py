"""RandAugment and random erasing: what they change, and draws that are functions of (seed, epoch, index)."""

from pathlib import Path

import pytest
import torch

from tests.data.folders import write_folder
from verydeep.data import load_data
from verydeep.data.pixel import pixel_transform
from verydeep.errors import UsageError


def test_none_unless_asked_for():
    assert pixel_transform(rand_augment=0, random_erasing=0.0, mean=(0.5,)) is None


def test_an_erased_rectangle_has_the_mean_colour_and_its_share_of_the_area():
    transform = pixel_transform(rand_augment=0, random_erasing=0.5, mean=(0.0, 0.5, 1.0))
    erased = 0
    for seed in range(100):
        torch.manual_seed(seed)
        before = torch.full((3, 32, 32), 77, dtype=torch.uint8)
        after = transform(before.clone())
        changed = (after != before).any(0)
        if changed.any():
            erased += 1
            assert 0.01 < changed.float().mean() < 0.35
            assert after[:, changed].unique(dim=1).squeeze(1).tolist() == [0, 128, 255]
            rows, columns = changed.any(1).sum(), changed.any(0).sum()
            assert changed.sum() == rows * columns
    assert 35 <= erased <= 65


def seen(data, order: list[int], *, epoch: int | None) -> torch.Tensor:
    """Images of these rows, in two batches."""
    index = torch.tensor(order)
    return torch.cat([images for images, _ in data.train.batches(index.split(3), epoch=epoch, device="cpu")])


@pytest.mark.parametrize("image_size", [8, 80], ids=["in memory", "files"])
def test_draws_are_those_of_seed_epoch_and_index(image_size: int, tmp_path: Path):
    folder = f"folder:{write_folder(tmp_path / 'in', {'a': 6, 'b': 6}, size=(90, 90))}"
    options = {"image_size": image_size, "flip": False, "augmentation": "none", "workers": 0}
    data = load_data(folder, rand_augment=2, random_erasing=0.5, **options)
    assert data.resident == (image_size == 8)
    rows = list(range(6))
    state = torch.get_rng_state()
    one = seen(data, rows, epoch=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(seen(data, rows[::-1], epoch=1).flip(0), one)
    plain = load_data(folder, **options)
    for other in (seen(data, rows, epoch=2), seen(plain, rows, epoch=1)):
        assert sum(not torch.equal(a, b) for a, b in zip(one, other, strict=True)) >= 4
    assert torch.equal(seen(data, rows, epoch=None), seen(plain, rows, epoch=None))


def test_grey_images_are_augmented_too():
    data = load_data("digits", rand_augment=2, random_erasing=0.9)
    images, _ = next(data.train.batches([torch.arange(50)], epoch=0, device="cpu"))
    assert images.shape == (50, 1, 8, 8) and images.isfinite().all()


def test_a_probability_is_below_one():
    with pytest.raises(UsageError, match=r"random_erasing 1\.5: must be at least 0 and below 1"):
        load_data("digits", random_erasing=1.5)
    with pytest.raises(UsageError, match="rand_augment -1: must be at least 0"):
        load_data("digits", rand_augment=-1)
