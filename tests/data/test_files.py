"""Batches of image files: the same whatever the workers, errors that arrive whole, workers that outlive an epoch."""

import logging
import multiprocessing
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.folders import write_folder
from verydeep.data import FileSplit
from verydeep.data.folder import PathImages
from verydeep.data.image_list import readable
from verydeep.data.transform import Normalise, eval_transform, train_transform
from verydeep.errors import RunError

INDICES = [torch.tensor([3, 0, 5]), torch.tensor([1]), torch.tensor([4, 2])]


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    write_folder(tmp_path, {"ant": 4, "bee": 2}, size=(40, 30))
    return sorted(str(path) for path in tmp_path.glob("*/*"))


def split_of(paths: list[str], *, workers: int = 0, seed: int = 0, augmentation: str = "scale+aspect") -> FileSplit:
    augment = train_transform(augmentation, 16, flip=True)
    labels = torch.arange(len(paths))
    return FileSplit(
        PathImages(paths), labels, (0.5,) * 3, (0.25,) * 3, 16, seed=seed, augment=augment, workers=workers
    )


def epoch_of(split: FileSplit, epoch: int | None, indices: list[Tensor] = INDICES) -> Tensor:
    """The images of all batches, in the order of the samples."""
    images, labels = zip(*split.batches(indices, epoch=epoch, device="cpu"), strict=True)
    assert torch.equal(torch.cat(labels), torch.cat(indices))
    return torch.cat(images)[torch.cat(indices).argsort()]


@pytest.mark.parametrize("augmentation", ["scale", "scale+aspect"])
def test_batches_do_not_depend_on_workers_nor_on_the_split_into_batches(paths: list[str], augmentation: str) -> None:
    here = epoch_of(split_of(paths, augmentation=augmentation), 3)
    assert torch.equal(epoch_of(split_of(paths, workers=2, augmentation=augmentation), 3), here)
    assert torch.equal(epoch_of(split_of(paths, augmentation=augmentation), 3, [torch.arange(6)]), here)


def test_spawned_workers_give_the_same(paths: list[str]) -> None:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        spawned = epoch_of(split_of(paths, workers=1), 3)
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert torch.equal(spawned, epoch_of(split_of(paths), 3))


def test_epochs_seeds_and_samples_draw_differently(paths: list[str]) -> None:
    split = split_of([paths[0]] * 6)
    first = epoch_of(split, 0)
    assert not torch.equal(first, epoch_of(split, 1))
    assert not torch.equal(first, epoch_of(split_of([paths[0]] * 6, seed=1), 0))
    assert len({image.numpy().tobytes() for image in first}) == 6


def test_no_epoch_means_the_test_transform(paths: list[str]) -> None:
    split = split_of(paths)
    images = epoch_of(split, None)
    pixels = np.stack([np.asarray(eval_transform(16)(split.images.read(row))) for row in range(6)])
    normalise = Normalise(split.mean, split.std, image_size=16, device=torch.device("cpu"))
    assert torch.equal(images, normalise(torch.from_numpy(pixels)))
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_workers_outlive_epochs_and_an_abandoned_one(paths: list[str]) -> None:
    split = split_of(paths, workers=1)
    expected = epoch_of(split_of(paths), 5)
    assert torch.equal(epoch_of(split, 5), expected)
    workers = {process.pid for process in multiprocessing.active_children()}
    abandoned = split.batches(INDICES, epoch=0, device="cpu")
    next(abandoned)
    abandoned.close()
    assert torch.equal(epoch_of(split, 5), expected)
    assert {process.pid for process in multiprocessing.active_children()} == workers


def test_two_iterators_at_a_time_do_not_mix(paths: list[str]) -> None:
    split = split_of(paths, workers=1)
    outer = split.batches(INDICES, epoch=1, device="cpu")
    images, _ = next(outer)
    assert torch.equal(epoch_of(split, None), epoch_of(split_of(paths), None))
    together = torch.cat([images, *(images for images, _ in outer)])
    assert torch.equal(together[torch.cat(INDICES).argsort()], epoch_of(split_of(paths), 1))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_arrives_as_one_line(paths: list[str], workers: int) -> None:
    Path(paths[1]).write_bytes(b"")
    with pytest.raises(RunError) as caught:
        epoch_of(split_of(paths, workers=workers), 0)
    assert str(caught.value) == f"{paths[1]}: cannot be read: empty file"


def test_unreadable_rows_are_found_and_named(paths: list[str], caplog: pytest.LogCaptureFixture) -> None:
    Path(paths[1]).write_bytes(b"")
    Path(paths[4]).write_bytes(Path(paths[4]).read_bytes()[:200])
    with caplog.at_level(logging.WARNING, "verydeep"):
        assert readable(PathImages(paths)).tolist() == [0, 2, 3, 5]
    assert len(caplog.records) == 2
    assert all(f"skipped: {path}: cannot be read" in caplog.text for path in (paths[1], paths[4]))


def test_the_global_generator_is_left_alone(paths: list[str]) -> None:
    before = torch.get_rng_state()
    epoch_of(split_of(paths), 0)
    epoch_of(split_of(paths, workers=1), 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_pickled_and_relabelled_splits_show_the_same_images(paths: list[str]) -> None:
    split = split_of(paths, workers=1)
    expected = epoch_of(split, 2)
    assert torch.equal(epoch_of(pickle.loads(pickle.dumps(split)), 2), expected)
    relabelled = split.with_labels(split.labels + 7)
    [(images, labels)] = relabelled.batches([torch.tensor([4])], epoch=2, device="cpu")
    assert torch.equal(images[0], expected[4]) and labels.tolist() == [11]
