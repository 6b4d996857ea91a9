"""Data sets as Hugging Face's library writes them, offline: columns by type, parts, class names, what is refused."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

datasets = pytest.importorskip("datasets")

from tests.data.folders import noise, png  # noqa: E402
from verydeep.data import load_data  # noqa: E402
from verydeep.data.hub import load_hub  # noqa: E402
from verydeep.errors import RunError, UsageError  # noqa: E402

IMAGES = [{"bytes": png(noise(seed, (8, 8))), "path": None} for seed in range(10)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library prepares files in a cache: not in the user's."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)


def dataset(rows: range, labels: list, kind: object = None, **columns: list):
    kind = kind or datasets.ClassLabel(names=["a", "b", "c"])
    features = datasets.Features({"img": datasets.Image(), "label": kind})
    values = {"img": [IMAGES[row] for row in rows], "label": labels}
    for name, column in columns.items():
        values[name], features[name] = column, datasets.Value("int64")
    return datasets.Dataset.from_dict(values, features=features)


def as_parquet(folder: Path, **parts) -> str:
    (folder / "data").mkdir(parents=True)
    for name, part in parts.items():
        part.to_parquet(str(folder / "data" / f"{name}-00000-of-00001.parquet"))
    return str(folder)


def as_arrow(folder: Path, **parts) -> str:
    datasets.DatasetDict(parts).save_to_disk(str(folder))
    return str(folder)


@pytest.mark.parametrize("write", [as_parquet, as_arrow])
def test_rows_come_back_as_written(write, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train, test = dataset(range(6), [0, 1, 2, 2, 1, 0], other=[5] * 6), dataset(range(6, 8), [1, 2], other=[5] * 2)
    folder = write(tmp_path / "in", train=train, test=test)
    capfd.readouterr()
    source = load_hub(folder, tmp_path)
    assert capfd.readouterr() == ("", "")
    assert source.classes == ("a", "b", "c") and source.validation is None and source.keep_small
    assert (source.train.labels.tolist(), source.test.labels.tolist()) == ([0, 1, 2, 2, 1, 0], [1, 2])
    taken = source.train.images.take(np.array([4, 0]))
    for images in (taken, pickle.loads(pickle.dumps(taken))):
        assert [np.asarray(images.read(row)).tolist() for row in range(2)] == [
            np.asarray(noise(seed, (8, 8))).tolist() for seed in (4, 0)
        ]


def test_it_is_a_data_set_by_name(tmp_path: Path) -> None:
    folder = as_parquet(tmp_path / "in", train=dataset(range(6), [0, 1, 2, 2, 1, 0]), validation=dataset([7], [1]))
    data = load_data(f"hub:{folder}")
    assert data.resident and data.image_size == 8 and len(data.train) == 6 and data.test.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("kind", "labels", "classes"),
    [("string", ["dog", "cat", "dog"], ("cat", "dog")), ("int64", [10, 9, 10], ("9", "10"))],
)
def test_labels_without_names_name_themselves(kind: str, labels: list, classes: tuple, tmp_path: Path) -> None:
    source = load_hub(as_arrow(tmp_path / "in", train=dataset(range(3), labels, datasets.Value(kind))), tmp_path)
    assert source.classes == classes and source.train.labels.tolist() == [1, 0, 1]


def test_a_part_without_labels_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    parts = {"train": dataset([0, 1], [0, 1]), "test": dataset([2], [-1]), "extra": dataset([3], [0])}
    source = load_hub(as_arrow(tmp_path / "in", **parts), tmp_path)
    assert source.test is None and len(source.train.labels) == 2
    assert "test has images without a label" in caplog.text and "not used: extra" in caplog.text


def test_what_has_no_images_or_labels_is_refused(tmp_path: Path) -> None:
    plain = datasets.Dataset.from_dict({"label": [1], "text": ["a"]})
    with pytest.raises(UsageError, match=r"no image column among label \(Value\), text \(Value\)"):
        load_hub(as_arrow(tmp_path / "plain", train=plain), tmp_path)
    bare = dataset([0], [0]).remove_columns("label")
    with pytest.raises(UsageError, match="no label column among img"):
        load_hub(as_arrow(tmp_path / "bare", train=bare), tmp_path)
    with pytest.raises(UsageError, match="no part train, validation or test among other"):
        load_hub(as_arrow(tmp_path / "other", other=dataset([0], [0])), tmp_path)
    with pytest.raises(UsageError, match="holds no labels in any part"):
        load_hub(as_arrow(tmp_path / "unknown", train=dataset([0], [-1])), tmp_path)


def test_what_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for location in (str(tmp_path / "empty"), "no-such-owner/no-such-data-set"):
        with pytest.raises(UsageError, match="cannot be loaded: ") as refusal:
            load_hub(location, tmp_path)
        assert "\n" not in str(refusal.value)


def test_damage_is_named(tmp_path: Path) -> None:
    broken = datasets.Dataset.from_dict(
        {"img": [{"bytes": b"no image", "path": None}], "label": [0]},
        features=datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(names=["a"])}),
    )
    images = load_hub(as_arrow(tmp_path / "in", train=broken), tmp_path).train.images
    with pytest.raises(RunError, match=r"train row 0 \(without a path\): cannot be read: no known image format"):
        images.read(0)


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"datasets is not installed; pip install 'verydeep\[hub\]'"):
        load_hub("any", tmp_path)
