"""A CSV of images and labels: parts, class names, paths, and what is refused, with its line."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.folders import noise
from verydeep.data import load_data
from verydeep.data.csv import load_csv
from verydeep.errors import RunError, UsageError


def written(folder: Path, text: str | bytes, *, images: int = 10) -> str:
    """The CSV file's name; beside it images 0.png, 1.png, ..."""
    for number in range(images):
        noise(number, (8, 8)).save(folder / f"{number}.png")
    path = folder / "labels.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_parts_and_classes_are_as_written(tmp_path: Path) -> None:
    text = "\ufeffid,Split,label,path\r\n1,train,cat,0.png\r\n2,train,dog,1.png\r\n3,validation,dog,2.png\r\n"
    text += f'4,TEST, cat ,"{tmp_path / "3.png"}"\r\n'
    source = load_csv(written(tmp_path, text), tmp_path / "unused")
    assert source.classes == ("cat", "dog")
    parts = (source.train, source.validation, source.test)
    assert [part.labels.tolist() for part in parts] == [[0, 1], [1], [0]]
    seen = [np.asarray(part.images.read(0)) for part in parts]
    assert all(np.array_equal(pixels, noise(i, (8, 8))) for pixels, i in zip(seen, (0, 2, 3), strict=True))


def test_numbers_are_sorted_as_numbers_and_a_fifth_is_held_out(tmp_path: Path) -> None:
    lines = [f"{number}.png,{10 if number % 2 else 9}" for number in range(10)]
    source = load_csv(written(tmp_path, "\n".join(["path,label", *lines])), tmp_path)
    assert source.classes == ("9", "10")
    assert sorted(source.test.labels.tolist()) == [0, 1] and len(source.train.labels) == 8
    seen = {part.images.path(row) for part in (source.train, source.test) for row in range(len(part.images))}
    assert seen == {str(tmp_path / f"{number}.png") for number in range(10)}


def test_it_is_a_data_set_by_name(tmp_path: Path) -> None:
    lines = [f"{number}.png,{'ab'[number % 2]}" for number in range(10)]
    data = load_data(f"csv:{written(tmp_path, chr(10).join(['path,label', *lines]))}", image_size=8)
    assert data.classes == ("a", "b") and data.resident and len(data.train) == 8 and len(data.test) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column 'path' among none"),
        ("path;label\na;b", "no column 'path' among path;label"),
        ("path,class\n0.png,a", "no column 'label' among path, class"),
        ("path,label\n", "no lines below the first"),
        ("path,label\n0.png,a\n1.png", "line 3: label '': must be given"),
        ("path,label\n,a", "line 2: path '': must be given"),
        ("path,label,split\n0.png,a,tst", "line 2: split 'tst': must be one of train, val"),
        ("path,label,split\n0.png,a,train\n1.png,b,test", "line 3: label 'b': not in train; nearest: 'a'"),
        (b"path,label\n\xff.png,a", "cannot be read as CSV in UTF-8"),
        (b'path,label\n"' + b"x" * 200_000 + b'",a', "cannot be read as CSV in UTF-8: field larger than"),
    ],
)
def test_what_breaks_a_rule_is_named(text: str | bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        load_csv(written(tmp_path, text, images=0), tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read as CSV in UTF-8: no such file or directory"):
        load_csv(str(tmp_path / "absent.csv"), tmp_path)
    source = load_csv(written(tmp_path, "path,label,split\nabsent.png,a,train", images=0), tmp_path)
    with pytest.raises(RunError, match=r"absent\.png: cannot be read: No such file"):
        source.train.images.read(0)
