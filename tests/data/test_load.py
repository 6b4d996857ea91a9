"""`load_data`: every name, what it decides by itself, what it refuses; known statistics."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tests.data.folders import noise, png, write_folder, write_parquet
from verydeep.data import Data, FileSplit, ResidentSplit, Split, eval_image, load_data, read_image
from verydeep.data.load import LOCATED, LOCATIONS, NAMED
from verydeep.errors import RunError, UsageError


def images_of(split: Split, epoch: int | None = None) -> torch.Tensor:
    [(images, _)] = split.batches([torch.arange(len(split))], epoch=epoch, device="cpu")
    return images


@pytest.fixture
def folder(tmp_path: Path) -> str:
    write_folder(tmp_path / "photos", {"ant": 10, "bee": 5}, size=(40, 30))
    return f"folder:{tmp_path / 'photos'}"


@pytest.fixture
def small_parquet(tmp_path: Path) -> str:
    images = [png(noise(seed, (16, 16))) for seed in range(20)]
    write_parquet(tmp_path / "hub" / "train-0.parquet", images[:16], [0, 1] * 8, classes=["a", "b"])
    write_parquet(tmp_path / "hub" / "test-0.parquet", images[16:], [0, 1] * 2)
    return f"parquet:{tmp_path / 'hub'}"


def test_digits_are_a_fixed_stratified_split_of_all() -> None:
    data = load_data("digits")
    assert (len(data.train) + len(data.test), data.channels, data.image_size) == (1797, 1, 8)
    assert data.classes == tuple("0123456789")
    assert not data.train.flip and data.train.crop_padding == 1
    total = torch.bincount(torch.cat((data.train.labels, data.test.labels)))
    assert ((torch.bincount(data.test.labels) / total - 0.2).abs() < 0.003).all()
    other = load_data("digits", seed=7)
    assert torch.equal(other.test.images, data.test.images)
    assert data.train.images.max() == 255 and data.train.images.min() == 0
    flat = data.train.images.numpy() / 255
    np.testing.assert_allclose((data.mean[0], data.std[0]), (flat.mean(), flat.std()), rtol=1e-9)


@pytest.mark.data
def test_cifar10_has_its_known_statistics(data_root: Path, tmp_path: Path) -> None:
    data = load_data(f"parquet:{data_root / 'cifar10'}", root=tmp_path)
    assert data.resident and (len(data.train), len(data.test), data.image_size) == (50_000, 10_000, 32)
    assert data.classes[0] == "airplane" and len(data.classes) == 10
    # The first mean is .49125038 by numpy over all pixels too: .4912 is within one unit of its last place, not half.
    np.testing.assert_allclose(data.mean, (0.4912, 0.4821, 0.4465), rtol=0, atol=1e-4)
    np.testing.assert_allclose(data.std, (0.2452, 0.2428, 0.2606), rtol=0, atol=1e-4)
    assert (data.train.crop_padding, data.train.flip, data.test.crop_padding, data.test.flip) == (4, True, 0, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.data
def test_a_folder_with_val_alone_is_for_evaluation_alone(data_root: Path, caplog: pytest.LogCaptureFixture) -> None:
    name = f"folder:{data_root / 'imagenet-sample'}"
    with pytest.raises(UsageError, match="no training set"):
        load_data(name)
    with caplog.at_level(logging.WARNING, "verydeep"):
        data = load_data(name, train_needed=False, workers=2)
    assert "computed from the test images" in caplog.text
    assert data.train is None and isinstance(data.test, FileSplit)
    indices = torch.arange(len(data.test)).split(32)
    count = 0
    for images, labels in data.test.batches(indices, epoch=None, device="cpu"):
        assert images.shape == (len(labels), 3, 224, 224)
        count += len(labels)
    assert count == len(data.test) >= 200


def test_folders_are_files_unless_a_small_size_is_given(folder: str) -> None:
    files, resident = load_data(folder, workers=0), load_data(folder, image_size=12)
    assert (files.resident, files.image_size) == (False, 224)
    assert (resident.resident, resident.image_size, resident.channels) == (True, 12, 3)
    assert not load_data(folder, image_size=65, workers=0).resident
    assert images_of(files.test).shape == (3, 3, 224, 224)
    assert images_of(resident.test).shape == (3, 3, 12, 12)


@pytest.mark.parametrize("size", [12, 80])
def test_eval_image_is_what_the_test_set_shows(folder: str, size: int) -> None:
    data = load_data(folder, image_size=size, workers=0)
    path = sorted(Path(folder.removeprefix("folder:")).glob("ant/*"))
    options = {"image_size": size, "channels": 3, "mean": data.mean, "std": data.std}
    shown = [eval_image(each, **options, resident_style=data.resident) for each in path]
    of_ants = images_of(data.test)[data.test.labels == 0]
    assert len(of_ants) == 2
    assert all(any(torch.equal(image, one) for one in shown) for image in of_ants)


def test_small_parquet_is_resident_and_unchanged(small_parquet: str) -> None:
    data = load_data(small_parquet, mean=(0.0,) * 3, std=(1.0,) * 3)
    assert isinstance(data.train, ResidentSplit) and data.image_size == 16
    expected = np.stack([np.asarray(noise(seed, (16, 16))) for seed in range(16)])
    assert np.array_equal(data.train.images.numpy(), expected)
    assert not load_data(small_parquet, image_size=100, workers=0).resident


@pytest.mark.parametrize("odd", [(16, 18), (12, 12), (100, 100)])
def test_parquet_of_several_sizes_is_files(odd: tuple[int, int], tmp_path: Path) -> None:
    images = [png(noise(0, (16, 16))), png(noise(1, odd))]
    write_parquet(tmp_path / "train-0.parquet", images, [0, 1])
    data = load_data(f"parquet:{tmp_path}", workers=0)
    assert isinstance(data.train, FileSplit) and images_of(data.train).shape == (2, 3, 224, 224)
    assert load_data(f"parquet:{tmp_path}", image_size=16).resident


@pytest.mark.parametrize("name", ["digits", "small_parquet", "folder"])
def test_test_and_validation_sets_are_never_augmented(name: str, request: pytest.FixtureRequest) -> None:
    name = name if name == "digits" else request.getfixturevalue(name)
    data = load_data(name, validation=2, workers=0, crop_padding=None, flip=True)
    for split in (data.validation, data.test):
        assert torch.equal(images_of(split, epoch=0), images_of(split))
    assert not torch.equal(images_of(data.train, epoch=0), images_of(data.train))


def test_augmentation_none_leaves_training_images_alone(small_parquet: str, folder: str) -> None:
    for name in (small_parquet, folder):
        data = load_data(name, augmentation="none", workers=0)
        assert torch.equal(images_of(data.train, epoch=0), images_of(data.train))


def test_validation_is_stratified_disjoint_and_fixed_by_the_seed() -> None:
    whole, data = load_data("digits"), load_data("digits", validation=300)
    assert (len(data.train), len(data.validation)) == (len(whole.train) - 300, 300)
    shares = torch.bincount(data.validation.labels) / torch.bincount(whole.train.labels)
    assert ((shares - 300 / len(whole.train)).abs() < 1 / 100).all()
    parts = [*data.train.images, *data.validation.images]
    assert Counter(map(bytes_of, parts)) == Counter(map(bytes_of, whole.train.images))
    same, other = (load_data("digits", validation=300, seed=seed) for seed in (0, 1))
    assert torch.equal(same.validation.images, data.validation.images)
    assert not torch.equal(other.validation.images, data.validation.images)
    assert data.mean != whole.mean


def bytes_of(image: torch.Tensor) -> bytes:
    return image.numpy().tobytes()


def test_image_size_resizes_resident_data_antialiased() -> None:
    data, small = load_data("digits"), load_data("digits", image_size=4)
    assert small.train.images.shape == (len(data.train), 4, 4, 1)
    image = Image.fromarray(data.train.images[0, ..., 0].numpy()).resize((4, 4), Image.Resampling.BILINEAR)
    assert np.abs(small.train.images[0, ..., 0].numpy().astype(int) - np.asarray(image)).max() <= 1
    assert small.train.crop_padding == 0


def test_skipped_images_are_left_out_and_named(folder: str, caplog: pytest.LogCaptureFixture) -> None:
    bad = Path(folder.removeprefix("folder:")) / "ant" / "3.png"
    bad.write_bytes(b"")
    with pytest.raises(RunError, match=r"ant/3\.png: cannot be read: empty file"):
        load_data(folder, image_size=8)
    with caplog.at_level(logging.WARNING, "verydeep"):
        data = load_data(folder, bad_images="skip", image_size=8)
    assert len(data.train) + len(data.test) == 14
    assert f"skipped: {bad}: cannot be read: empty file" in caplog.text


def test_nothing_readable_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, {"ant": 1})
    (tmp_path / "ant" / "0.png").write_bytes(b"")
    with pytest.raises(UsageError, match="none of the 1 images"):
        load_data(f"folder:{tmp_path}", bad_images="skip")


def test_training_images_are_not_loaded_for_evaluation_with_given_statistics(small_parquet: str) -> None:
    data = load_data(small_parquet, train_needed=False, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert data.train is None and len(data.test) == 4
    assert load_data(small_parquet, train_needed=False).mean == load_data(small_parquet).mean


def test_every_source_is_reached_by_name(folder: str, small_parquet: str) -> None:
    assert set(NAMED) == {"digits", "cifar10", "cifar100"} and set(LOCATED) == set(LOCATIONS) == {
        "folder",
        "parquet",
        "csv",
        "hub",
    }
    assert all(isinstance(load_data(name), Data) for name in ("digits", folder, small_parquet))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("digit", {}, "data 'digit': unknown; nearest: digits"),
        ("folder:", {}, "data 'folder:': unknown; nearest: folder:DIR"),
        ("digits:x", {}, "data 'digits:x': unknown; nearest: digits"),
        ("digits", {"image_size": 0}, "image_size 0: must be at least 1"),
        ("digits", {"validation": -1}, "validation -1: must be at least 0"),
        ("digits", {"validation": 2000}, "validation 2000: .* at most 1428"),
        ("digits", {"crop_padding": 8}, "crop_padding 8: must be below the image size; at most 7"),
        ("digits", {"augmentation": "scales"}, "augmentation .scales.: unknown; nearest: scale"),
        ("digits", {"resize": 20}, "resize 20: data 'digits' are resized whole to 8, not cropped; must be left out"),
        ("digits", {"color_jitter": "pca"}, "color_jitter 'pca': data 'digits' are small images in memory"),
        ("digits", {"color_jitter": "hue"}, "color_jitter 'hue': unknown; nearest: none, pca"),
        ("digits", {"bad_images": "ignore"}, "bad_images 'ignore': unknown"),
        ("digits", {"mean": (0.1, 0.2, 0.3)}, r"mean \(0.1, 0.2, 0.3\): must have 1 numbers"),
        ("digits", {"mean": (float("nan"),)}, r"mean \(nan,\): must be finite"),
        ("digits", {"std": (0.0,)}, r"std \(0.0,\): must be above 0"),
        ("digits", {"std": (float("inf"),)}, r"std \(inf,\): must be above 0"),
    ],
)
def test_what_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_data(name, **options)
    assert "\n" not in str(caught.value)


def test_a_directory_without_prefix_is_told_how_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"nearest: folder:{tmp_path}"):
        load_data(str(tmp_path))


@pytest.mark.parametrize("options", [{"resize": 20}, {"color_jitter": "pca"}])
def test_resize_and_jitter_keep_small_files_files(folder: str, options: dict) -> None:
    data = load_data(folder, image_size=12, workers=0, **options)
    assert isinstance(data.train, FileSplit) and not data.resident
    image = read_image(data.test.images.path(0))
    resize = options.get("resize", 14)
    expected = np.asarray(v2.CenterCrop(12)(image.resize((resize * 40 // 30, resize), Image.Resampling.BILINEAR)))
    shown = (images_of(data.test)[0].permute(1, 2, 0).double().numpy() * data.std + data.mean) * 255
    np.testing.assert_allclose(shown, expected, rtol=0, atol=1e-3)


def test_a_resize_below_the_image_size_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="resize 223: must be at least image_size; nearest 224"):
        load_data(folder, resize=223)


def test_padding_of_image_files_is_refused(folder: str) -> None:
    with pytest.raises(UsageError, match="crop_padding 4: image files are not padded"):
        load_data(folder, crop_padding=4)


def test_own_validation_set_and_hold_out_exclude_each_other(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        write_folder(tmp_path / part, {"ant": 3})
    with pytest.raises(UsageError, match="a validation set of their own"):
        load_data(f"folder:{tmp_path}", validation=1)


def test_constant_images_need_a_deviation(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [png(Image.new("RGB", (8, 8)))] * 2, [0, 1])
    with pytest.raises(UsageError, match="constant in a channel"):
        load_data(f"parquet:{tmp_path}")
    assert load_data(f"parquet:{tmp_path}", std=(1.0,) * 3).std == (1.0,) * 3


def test_at_most_so_many_images_of_each_split() -> None:
    whole, some = load_data("digits"), load_data("digits", max_images=400)
    again = load_data("digits", max_images=400, seed=7)
    assert (len(some.train), len(some.test)) == (400, len(whole.test)) == (400, 359)
    assert torch.equal(some.train.images, again.train.images)
    assert some.train.labels.bincount().min() > 20  # of every class, though the rows are drawn blindly
    rows = {row.numpy().tobytes() for row in whole.train.images}
    assert all(row.numpy().tobytes() in rows for row in some.train.images)
    with pytest.raises(UsageError, match="max_images 0: must be at least 1"):
        load_data("digits", max_images=0)
