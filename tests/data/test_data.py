"""`Data.with_classes`: labels follow the names."""

import dataclasses
from pathlib import Path

import pytest

from tests.data.folders import write_folder
from verydeep.data import load_data
from verydeep.errors import UsageError


def test_labels_follow_the_names_into_another_list(tmp_path: Path) -> None:
    write_folder(tmp_path, {"ant": 5, "bee": 10, "大熊猫": 5})
    data = load_data(f"folder:{tmp_path}", image_size=8, validation=2)
    trained = ("大熊猫", "cat", "ant", "bee")
    mapped = data.with_classes(trained)
    assert mapped.classes == trained
    for before, after in zip(splits(data), splits(mapped), strict=True):
        names = [data.classes[label] for label in before.labels.tolist()]
        assert [trained[label] for label in after.labels.tolist()] == names
    assert mapped.with_classes(trained).test.labels.tolist() == mapped.test.labels.tolist()


def splits(data) -> tuple:
    return data.train, data.validation, data.test


def test_an_unknown_class_is_named_with_the_nearest(tmp_path: Path) -> None:
    write_folder(tmp_path, {"tabby-cat": 2, "dog": 2})
    data = load_data(f"folder:{tmp_path}", image_size=8)
    with pytest.raises(UsageError, match="class 'tabby-cat': unknown to the network; nearest: 'tabby cat'"):
        data.with_classes(["tabby cat", "dog"])


def test_data_do_not_change_and_print_on_one_line() -> None:
    data = load_data("digits")
    with pytest.raises(dataclasses.FrozenInstanceError):
        data.name = "other"
    assert "\n" not in repr(data) and "ResidentSplit(1438 images)" in repr(data)
