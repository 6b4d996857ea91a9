"""Image folders: layouts, names, hold-out, and what is refused."""

import logging
import os
import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.data.folders import noise, write_folder
from verydeep.data.folder import PathImages, load_folder
from verydeep.errors import UsageError


def load(folder: Path):
    return load_folder(str(folder), Path("unused"))


def paths_of(part) -> list[str]:
    return [part.images.path(row) for row in range(len(part.images))]


def test_class_folders_alone_hold_a_fixed_fifth_out(tmp_path: Path) -> None:
    source = load(write_folder(tmp_path, {"ant": 10, "bee": 2, "cat": 1}))
    assert source.classes == ("ant", "bee", "cat")
    assert Counter(source.train.labels.tolist()) == {0: 8, 1: 1, 2: 1}
    assert Counter(source.test.labels.tolist()) == {0: 2, 1: 1}
    assert len({*paths_of(source.train), *paths_of(source.test)}) == 13
    assert paths_of(source.test) == paths_of(load(tmp_path).test)
    for part in (source.train, source.test):
        assert [Path(path).parent.name for path in paths_of(part)] == [source.classes[i] for i in part.labels.tolist()]


def test_one_image_a_class_leaves_no_test_set_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "verydeep"):
        source = load(write_folder(tmp_path, {"ant": 1, "bee": 1}))
    assert source.test is None and len(source.train.labels) == 2
    assert "there is no test set" in caplog.text


def test_split_folders_are_taken_as_they_are(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"ant": 3, "bee": 2})
    write_folder(tmp_path / "val", {"bee": 4})
    source = load(tmp_path)
    assert (len(source.train.labels), source.validation, source.test.labels.tolist()) == (5, None, [1] * 4)
    write_folder(tmp_path / "test", {"ant": 1})
    source = load(tmp_path)
    assert (source.validation.labels.tolist(), source.test.labels.tolist()) == ([1] * 4, [0])


def test_classes_may_be_called_train_and_test(tmp_path: Path) -> None:
    assert load(write_folder(tmp_path, {"bus": 2, "train": 2})).classes == ("bus", "train")


def test_names_endings_hidden_files_and_links(tmp_path: Path) -> None:
    names = ["it's", "two words", "大熊猫"]
    write_folder(tmp_path / "data", dict.fromkeys(names, 2))
    (tmp_path / "data" / ".hidden").mkdir()
    (tmp_path / "data" / "it's" / ".hidden.png").write_bytes(b"")
    (tmp_path / "data" / "it's" / "notes.txt").write_text("not an image")
    noise(0).save(tmp_path / "data" / "it's" / "UPPER.JPEG")
    (tmp_path / "elsewhere").mkdir()
    noise(1).save(tmp_path / "elsewhere" / "1.png")
    os.symlink(tmp_path / "elsewhere", tmp_path / "data" / "linked")
    os.symlink(tmp_path / "elsewhere" / "1.png", tmp_path / "data" / "it's" / "link.png")
    os.symlink(tmp_path / "data" / "it's", tmp_path / "data" / "it's" / "loop")
    source = load(tmp_path / "data")
    assert source.classes == ("it's", "linked", "two words", "大熊猫")
    counts = Counter([*source.train.labels.tolist(), *source.test.labels.tolist()])
    assert counts == {0: 4, 1: 1, 2: 2, 3: 2}
    assert all(source.train.images.read(row).size == (20, 20) for row in range(len(source.train.images)))


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, "no class sub-folders"),
        ({"ant": 2, "empty one": 0}, "class 'empty one': 0 images"),
        ({"ant": 0, "bee": 0}, "each class: 0 images"),
    ],
)
def test_folders_without_images_are_refused(counts: dict[str, int], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load(write_folder(tmp_path, counts))


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        load(tmp_path / "absent")


def test_a_test_class_that_training_lacks_is_named_with_the_nearest(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", {"tabby cat": 1, "dog": 1})
    write_folder(tmp_path / "val", {"tabby-cat": 1})
    with pytest.raises(UsageError, match="class 'tabby-cat': not in train/; nearest: 'tabby cat'"):
        load(tmp_path)


def test_other_folders_beside_the_splits_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_folder(tmp_path / "train", {"ant": 1})
    (tmp_path / "annotations").mkdir()
    with caplog.at_level(logging.WARNING, "verydeep"):
        load(tmp_path)
    assert "not used beside train: annotations" in caplog.text


def test_path_lists_are_compact_and_survive_pickling() -> None:
    paths = [f"/data/图/{number:06}.jpg" for number in range(10_000)]
    images = PathImages(paths).take(np.arange(0, 10_000, 2))
    content = pickle.dumps(images)
    assert len(content) < 10_000 * 40
    copy = pickle.loads(content)
    assert [copy.path(row) for row in (0, 1, 4999)] == [paths[0], paths[2], paths[9998]]
