"""A CSV file that lists images and their labels: columns path, label and, if the parts are given, split."""

import csv
from pathlib import Path

from verydeep.data.folder import PathImages, with_fifth_held_out
from verydeep.data.source import Labelled, Source, arrange, labels_of
from verydeep.errors import UsageError, nearest

PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}

Row = tuple[int, str, str, str]  # line, path, label, part


def load_csv(location: str, root: Path) -> Source:
    """The images that a CSV file lists; `root` is not read.

    The first line names the columns: path (from the file's own folder, or absolute), label, and split (train, val or
    test); others are not read. Without a split a fixed fifth of each class becomes the test set; val is the test set
    if there is no test. Classes are the labels of train where there is one, sorted, as numbers if all are.

    Raises:  UsageError: if the file cannot be read, or a line of it breaks a rule, naming the line
    """
    file = Path(location).expanduser()
    rows = _rows(file)
    if not rows:
        raise UsageError(f"data 'csv:{location}': no lines below the first; needs a line for each image")
    found = {part: [row for row in rows if row[3] == part] for part in ("train", "val", "test", "")}
    filled = {part: rows for part, rows in found.items() if rows}
    classes = _class_names(next(iter(filled.values())))
    parts = {part: _labelled(file, rows, classes) for part, rows in filled.items()}
    return with_fifth_held_out(classes, parts[""], f"csv {file}") if "" in parts else arrange(classes, parts)


def _rows(file: Path) -> list[Row]:
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:  # Excel begins with a byte order mark
            reader = csv.DictReader(lines, restval="")
            names = [name.strip().lower() for name in reader.fieldnames or []]
            for name in ("path", "label"):
                if name not in names:
                    raise UsageError(f"data 'csv:{file}': no column {name!r} among {', '.join(names) or 'none'}")
            reader.fieldnames = names
            return [_row(file, reader.line_num, values, has_split="split" in names) for values in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"data 'csv:{file}': cannot be read as CSV in UTF-8: {reason}") from None


def _row(file: Path, line: int, values: dict[str, str], *, has_split: bool) -> Row:
    path, label = values["path"].strip(), values["label"].strip()
    for name, value in (("path", path), ("label", label)):
        if not value or "\0" in value:
            raise UsageError(f"data 'csv:{file}': line {line}: {name} {value!r}: must be given")
    if not has_split:
        return line, path, label, ""
    part = values["split"].strip().lower()
    if part not in PARTS:
        raise UsageError(f"data 'csv:{file}': line {line}: split {part!r}: must be one of {', '.join(PARTS)}")
    return line, path, label, PARTS[part]


def _class_names(rows: list[Row]) -> tuple[str, ...]:
    names = {label for _, _, label, _ in rows}
    return tuple(sorted(names, key=int) if all(map(_is_number, names)) else sorted(names))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _labelled(file: Path, rows: list[Row], classes: tuple[str, ...]) -> Labelled:
    position = {name: label for label, name in enumerate(classes)}
    for line, _, label, _ in rows:
        if label not in position:
            alike = ", ".join(map(repr, nearest(label, classes)))
            raise UsageError(f"data 'csv:{file}': line {line}: label {label!r}: not in train; nearest: {alike}")
    paths = [str(file.parent / path) for _, path, _, _ in rows]
    return Labelled(PathImages(paths), labels_of([position[label] for _, _, label, _ in rows]))
