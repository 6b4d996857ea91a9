"""Resident batches against a loop over single images; augmentation as a function of (seed, epoch, index)."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verydeep.data import ResidentSplit
from verydeep.data.transform import Normalise

CPU = torch.device("cpu")


def split_of(count: int = 40, side: int = 8, channels: int = 3, **options: object) -> ResidentSplit:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.integers(0, 256, (count, side, side, channels), dtype=np.uint8))
    labels = torch.from_numpy(rng.integers(0, 10, count))
    return ResidentSplit(images, labels, (0.5,) * channels, (0.25,) * channels, **options)


def batch(split: ResidentSplit, index: Tensor, epoch: int | None) -> Tensor:
    [(images, _)] = split.batches([index], epoch=epoch, device="cpu")
    return images


def one_by_one(split: ResidentSplit, index: Tensor, epoch: int) -> Tensor:
    """Pad, crop and mirror each image alone, in numpy."""
    padding, side = split.crop_padding, split.images.shape[1]
    pixels = []
    for row in index.tolist():
        down, right, mirrored = split.draws(epoch)[:, row].tolist()
        padded = np.pad(split.images[row].numpy(), ((padding, padding), (padding, padding), (0, 0)))
        crop = padded[down : down + side, right : right + side]
        pixels.append(crop[:, ::-1] if mirrored else crop)
    normalise = Normalise(split.mean, split.std, image_size=side, device=CPU)
    return normalise(torch.from_numpy(np.stack(pixels)))


@given(
    st.integers(1, 7), st.integers(0, 6), st.booleans(), st.sampled_from([1, 3]), st.integers(0, 5), st.integers(0, 99)
)
def test_batches_equal_a_loop_bit_for_bit(
    side: int, padding: int, flip: bool, channels: int, seed: int, epoch: int
) -> None:
    split = split_of(9, side, channels, seed=seed, crop_padding=padding, flip=flip)
    index = torch.tensor([8, 0, 3, 3, 5])
    assert torch.equal(batch(split, index, epoch), one_by_one(split, index, epoch))


def test_batches_are_float32_channels_last_with_their_labels() -> None:
    split = split_of()
    indices = [torch.tensor([3, 1]), torch.tensor([7])]
    for index, (images, labels) in zip(indices, split.batches(indices, epoch=2, device="cpu"), strict=True):
        assert images.dtype == torch.float32 and images.shape == (len(index), 3, 8, 8)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(labels, split.labels[index])


@given(st.lists(st.integers(1, 39), max_size=5, unique=True))
def test_augmentation_does_not_depend_on_the_split_into_batches(cuts: list[int]) -> None:
    split = split_of(crop_padding=2, flip=True)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    pieces = order.tensor_split(sorted(cuts))
    images = torch.cat([images for images, _ in split.batches(pieces, epoch=3, device="cpu")])
    assert torch.equal(images, batch(split, order, 3))


def test_no_epoch_means_no_augmentation() -> None:
    augmenting, plain = split_of(crop_padding=3, flip=True), split_of()
    index = torch.arange(40)
    assert torch.equal(batch(augmenting, index, None), batch(plain, index, None))
    assert not torch.equal(batch(augmenting, index, 0), batch(plain, index, None))


def test_epochs_and_seeds_draw_differently() -> None:
    first, second = split_of(crop_padding=2, flip=True), split_of(crop_padding=2, flip=True, seed=1)
    assert not torch.equal(first.draws(0), first.draws(1))
    assert not torch.equal(first.draws(0), second.draws(0))


def test_draws_are_uniform_over_corners_and_mirror_half() -> None:
    down, right, mirrored = split_of(20_000, 1, 1, crop_padding=4, flip=True).draws(0)
    for corner in (down, right):
        # 20,000 / 9 = 2222 each, deviation 44; five of them.
        assert ((torch.bincount(corner, minlength=9) - 2222).abs() < 222).all()
    assert abs(int(mirrored.sum()) - 10_000) < 5 * 71
    joint = torch.bincount(down * 18 + right * 2 + mirrored, minlength=162)
    assert ((joint - 123).abs() < 6 * 11.1).all()


def test_padding_is_zeros_of_raw_pixels() -> None:
    split = split_of(4, 4, crop_padding=3)
    down = split.draws(0)[0]
    images = batch(split, torch.arange(4), 0)
    black = torch.tensor((0 - 0.5) / 0.25)
    assert (down < 3).any()
    for image, offset in zip(images, down.tolist(), strict=True):
        assert (image[:, : max(3 - offset, 0)] == black).all()


def test_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    batch(split_of(crop_padding=2, flip=True), torch.arange(40), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_pickled_and_relabelled_splits_show_the_same_images() -> None:
    split = split_of(crop_padding=2, flip=True)
    index = torch.arange(40)
    assert torch.equal(batch(pickle.loads(pickle.dumps(split)), index, 1), batch(split, index, 1))
    relabelled = split.with_labels(split.labels + 5)
    assert torch.equal(batch(relabelled, index, 1), batch(split, index, 1))
    assert torch.equal(relabelled.labels, split.labels + 5)


@pytest.mark.gpu
def test_batches_on_a_gpu_equal_those_on_the_cpu() -> None:
    split = split_of(crop_padding=2, flip=True)
    [(images, labels)] = split.batches([torch.arange(40)], epoch=1, device="cuda")
    assert images.is_cuda and labels.is_cuda
    assert torch.equal(images.cpu(), batch(split, torch.arange(40), 1))


def test_pixels_are_moved_once_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    split, moves = split_of(crop_padding=1), []
    move = Tensor.to
    monkeypatch.setattr(
        Tensor, "to", lambda self, *to, **options: moves.append(self.shape) or move(self, *to, **options)
    )
    for epoch in range(3):
        list(split.batches([], epoch=epoch, device="meta"))
    assert moves.count(torch.Size((40, 10, 10, 3))) == 1
