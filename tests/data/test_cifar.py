"""CIFAR in torchvision's layout: a small stand-in on disk, and what happens where there is none."""

import hashlib
import pickle
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
from torchvision import datasets

from verydeep.data import load_data
from verydeep.errors import UsageError


def write(folder: Path, name: str, content: dict) -> str:
    """One of the archive's files; returns the MD5 that torchvision is to expect."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(content))
    return hashlib.md5((folder / name).read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "kind", "key", "names_key"),
    [
        ("cifar10", datasets.CIFAR10, "labels", "label_names"),
        ("cifar100", datasets.CIFAR100, "fine_labels", "fine_label_names"),
    ],
)
def test_files_in_place_are_read(
    name: str, kind: type, key: str, names_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / kind.base_folder
    rows = np.random.default_rng(0).integers(0, 256, (6, 3 * 32 * 32), dtype=np.uint8)
    train = write(folder, "train", {"data": rows[:4], key: [1, 0, 1, 0]})
    test = write(folder, "test", {"data": rows[4:], key: [0, 1]})
    meta = write(folder, "meta", {names_key: ["cat", "dog"]})
    monkeypatch.setattr(kind, "train_list", [["train", train]])
    monkeypatch.setattr(kind, "test_list", [["test", test]])
    monkeypatch.setattr(kind, "meta", {"filename": "meta", "key": names_key, "md5": meta})
    data = load_data(name, root=tmp_path)
    assert data.classes == ("cat", "dog") and data.image_size == 32
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([1, 0, 1, 0], [0, 1])
    expected = rows.reshape(6, 3, 32, 32).transpose(0, 2, 3, 1)
    assert np.array_equal(data.train.images.numpy(), expected[:4])
    assert np.array_equal(data.test.images.numpy(), expected[4:])


def test_without_files_or_network_the_places_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise URLError("no network")

    monkeypatch.setattr(datasets.cifar, "download_and_extract_archive", no_network)
    with pytest.raises(UsageError) as caught:
        load_data("cifar10", root=tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(tmp_path / "cifar-10-batches-py"), "no network", "cifar-10-python.tar.gz", "parquet:DIR"):
        assert part in message


def test_a_changed_file_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    for name, _ in [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]:
        write(folder, name, {"data": np.zeros((1, 3072), dtype=np.uint8), "labels": [0]})
    monkeypatch.setattr(datasets.cifar, "download_and_extract_archive", lambda *_, **__: None)
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(UsageError, match="no complete copy"):
        load_data("cifar10", root=tmp_path)
