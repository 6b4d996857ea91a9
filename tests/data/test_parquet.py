"""Parquet in the hub's layout: columns found by type, class names, both ways to keep the bytes, damage."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.data.folders import noise, png, write_parquet
from verydeep.data import parquet
from verydeep.data.parquet import load_parquet
from verydeep.errors import RunError, UsageError

IMAGES = [png(noise(seed, (8, 8))) for seed in range(10)]


def load(folder: Path, root: Path):
    return load_parquet(str(folder), root)


@pytest.mark.parametrize("limit", [0, 2**20], ids=["arrow file", "in memory"])
def test_rows_come_back_as_written(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MAX_BYTES_IN_MEMORY", limit)
    write_parquet(tmp_path / "in" / "train-0.parquet", IMAGES[:6], [0, 1, 2, 0, 1, 2], classes=["a", "b", "c"])
    write_parquet(tmp_path / "in" / "train-1.parquet", IMAGES[6:9], [2, 1, 0])
    write_parquet(tmp_path / "in" / "test-0.parquet", IMAGES[9:], [1])
    source = load(tmp_path / "in", tmp_path / "root")
    assert source.classes == ("a", "b", "c")
    assert source.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 2, 1, 0]
    assert source.test.labels.tolist() == [1]
    taken = source.train.images.take(np.array([8, 0, 5]))
    for images in (taken, pickle.loads(pickle.dumps(taken))):
        read = [images.read(row).tobytes() for row in range(3)]
        assert read == [noise(seed, (8, 8)).tobytes() for seed in (8, 0, 5)]
    assert len(list((tmp_path / "root").glob("arrow/*"))) == (2 if limit == 0 else 0)


def test_an_arrow_file_is_written_once_and_again_when_the_source_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MAX_BYTES_IN_MEMORY", 0)
    write_parquet(tmp_path / "train-0.parquet", IMAGES[:2], [0, 1])
    load(tmp_path, tmp_path / "root")
    [first] = (tmp_path / "root" / "arrow").iterdir()
    written = first.stat().st_mtime_ns
    load(tmp_path, tmp_path / "root")
    assert first.stat().st_mtime_ns == written
    write_parquet(tmp_path / "train-0.parquet", IMAGES[:3], [0, 1, 1])
    source = load(tmp_path, tmp_path / "root")
    assert len(list((tmp_path / "root" / "arrow").iterdir())) == 2
    assert source.train.images.read(2).tobytes() == noise(2, (8, 8)).tobytes()


def test_validation_is_the_test_set_where_there_is_no_test(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data" / "train-0.parquet", IMAGES[:2], [0, 11])
    write_parquet(tmp_path / "data" / "validation-0.parquet", IMAGES[2:5], [1, 1, 1])
    source = load(tmp_path, tmp_path)
    assert source.validation is None and len(source.test.labels) == 3
    assert source.classes == tuple(str(number) for number in range(12))
    write_parquet(tmp_path / "data" / "test-0.parquet", IMAGES[5:6], [0])
    source = load(tmp_path, tmp_path)
    assert len(source.validation.labels) == 3 and len(source.test.labels) == 1


def test_of_several_integer_columns_the_fine_label_is_meant(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", IMAGES[:2], [1, 0], label="fine_label", coarse_label=[0, 0])
    assert load(tmp_path, tmp_path).train.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({"label": "a", "b": [1, 2]}, [0, 1], "2 integer columns, none named label"),
        ({}, [0, -1], "label in train runs from -1 to 0: must be 0 to 0"),
        ({"classes": ["only"]}, [0, 1], "runs from 0 to 1: must be 0 to 0"),
        ({}, [0, None], "found nulls"),
    ],
)
def test_labels_that_say_nothing_are_refused(options: dict, labels: list, message: str, tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", IMAGES[:2], labels, **options)
    with pytest.raises(UsageError, match=message):
        load(tmp_path, tmp_path)


def test_missing_folder_files_and_columns_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pytest.raises(UsageError, match="no such folder"):
        load(tmp_path / "absent", tmp_path)
    with pytest.raises(UsageError, match=r"no train-\*\.parquet"):
        load(tmp_path, tmp_path)
    pq.write_table(pa.table({"label": [1]}), tmp_path / "train-0.parquet")
    with pytest.raises(UsageError, match=r"no image column .* among label \(int64\)"):
        load(tmp_path, tmp_path)
    write_parquet(tmp_path / "train-0.parquet", IMAGES[:1], [1])
    pq.write_table(pa.table({"label": [1]}), tmp_path / "train-1.parquet")
    with pytest.raises(UsageError, match=r"train-1\.parquet: no column 'picture'"):
        load(tmp_path, tmp_path)


def test_damage_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-0.parquet", [IMAGES[0], IMAGES[1][:60], None], [0, 0, 0])
    images = load(tmp_path, tmp_path).train.images
    with pytest.raises(RunError, match=r"train row 1 \(1\.png\): cannot be read"):
        images.read(1)
    with pytest.raises(RunError, match=r"train row 2 \(2\.png\): cannot be read: it has no bytes"):
        images.read(2)
    (tmp_path / "train-0.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(RunError, match=r"train-0\.parquet: cannot be read"):
        load(tmp_path, tmp_path)
