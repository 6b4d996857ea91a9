"""Parquet files in the hub's layout: `train-*.parquet`, `test-*.parquet`, with an image and a label column.

Columns of encoded images up to 256 MiB are kept in memory. Larger ones are copied once to an Arrow file below `root`,
from which workers map single rows, since a compressed parquet file has no random access.
"""

import dataclasses
import hashlib
import os
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from verydeep.data.image import read_image
from verydeep.data.image_list import ImageList
from verydeep.data.source import Labelled, Source, arrange, labels_of
from verydeep.errors import RunError, UsageError
from verydeep.files import parse_json

MAX_BYTES_IN_MEMORY = 256 * 2**20
MAX_CLASSES = 1_000_000

_PATTERNS = {
    "train": ("train-*.parquet",),
    "val": ("validation-*.parquet", "val-*.parquet"),
    "test": ("test-*.parquet",),
}
_LABEL_NAMES = ("label", "labels", "fine_label")  # which of several integer columns is meant
_ROWS_A_BATCH = 64


@final
class ParquetImages(ImageList):
    """Encoded images, struct<bytes, path>, of a column in memory or of an Arrow file that each process maps."""

    def __init__(self, source: pa.ChunkedArray | Path, rows: np.ndarray, *, name: str) -> None:
        self._source, self._rows, self._name = source, rows, name

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> Image.Image:
        place = int(self._rows[row])
        try:
            value = self._column[place].as_py() or {}
        except (pa.ArrowException, ValueError) as error:
            raise RunError(f"{self._name} row {place}: cannot be read: {error}") from None
        name = f"{self._name} row {place} ({value.get('path') or 'without a path'})"
        if value.get("bytes") is None:
            raise RunError(f"{name}: cannot be read: it has no bytes")
        return read_image(value["bytes"], name=name)

    def take(self, rows: np.ndarray) -> "ParquetImages":
        return ParquetImages(self._source, self._rows[rows], name=self._name)

    @cached_property
    def _column(self) -> pa.ChunkedArray:
        if isinstance(self._source, Path):
            return pa.ipc.open_file(pa.memory_map(str(self._source))).read_all().column(0)
        return self._source

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_column"}


def load_parquet(location: str, root: Path) -> Source:
    """The images of a folder of parquet files (or of its `data` sub-folder); Arrow copies go below `root`.

    The image column is the first struct with `bytes`; the label column the integer one (of several, `label`,
    `labels` or `fine_label`). Class names come from the schema's `huggingface` metadata, else they are the numbers.
    `validation-*` or `val-*` is the test set if there is no `test-*`.

    Raises:  UsageError: if files, columns or labels are missing
             RunError: if a file is damaged, naming it
    """
    files = _files(Path(location).expanduser())
    schema = _opened(next(iter(files.values()))[0]).schema_arrow
    image, label = _image_column(schema, location), _label_column(schema, location)
    labels = {part: _labels(paths, label) for part, paths in files.items()}
    classes = _class_names(schema, label, location) or _numbers(labels, location)
    for part, values in labels.items():
        if not 0 <= min(values) <= max(values) < len(classes):
            raise UsageError(
                f"data 'parquet:{location}': {label} in {part} runs from {min(values)} to {max(values)}: must be 0 to "
                f"{len(classes) - 1}; move the files of an unlabelled part away"
            )
    parts = {
        part: Labelled(_images(paths, image, name=f"{location} {part}", root=root), labels_of(labels[part]))
        for part, paths in files.items()
    }
    return dataclasses.replace(arrange(classes, parts), keep_small=True)


def _numbers(labels: dict[str, list[int]], location: str) -> tuple[str, ...]:
    """Class names where there are none: the numbers up to the largest label."""
    largest = max(max(values) for values in labels.values())
    if largest >= MAX_CLASSES:
        raise UsageError(f"data 'parquet:{location}': label {largest}: without class names must be below {MAX_CLASSES}")
    return tuple(map(str, range(largest + 1)))


def _files(folder: Path) -> dict[str, list[Path]]:
    if not folder.is_dir():
        raise UsageError(f"data 'parquet:{folder}': no such folder; expected one with train-*.parquet")
    for place in (folder, folder / "data"):
        found = {
            part: sorted(path for pattern in patterns for path in place.glob(pattern))
            for part, patterns in _PATTERNS.items()
        }
        if any(found.values()):
            return {part: paths for part, paths in found.items() if paths}
    raise UsageError(f"data 'parquet:{folder}': no train-*.parquet, test-*.parquet or validation-*.parquet in it")


def _image_column(schema: pa.Schema, location: str) -> str:
    for column in schema:
        if _is_image(column.type):
            return column.name
    raise UsageError(f"data 'parquet:{location}': no image column (struct of bytes and path) among {_columns(schema)}")


def _is_image(kind: pa.DataType) -> bool:
    place = kind.get_field_index("bytes") if pa.types.is_struct(kind) else -1
    return place >= 0 and (
        pa.types.is_binary(kind.field(place).type) or pa.types.is_large_binary(kind.field(place).type)
    )


def _label_column(schema: pa.Schema, location: str) -> str:
    integers = [column.name for column in schema if pa.types.is_integer(column.type)]
    named = [name for name in _LABEL_NAMES if name in integers] or integers
    if not named or (len(integers) > 1 and named is integers):
        found = f"{len(integers)} integer columns, none named label," if integers else "no integer label column"
        raise UsageError(f"data 'parquet:{location}': {found} among {_columns(schema)}")
    return named[0]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} ({column.type})" for column in schema)


def _class_names(schema: pa.Schema, label: str, location: str) -> tuple[str, ...]:
    """Those that the schema's metadata declare; none if they say nothing of the label column."""
    try:
        declared: Any = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
    except ValueError as error:
        raise UsageError(f"data 'parquet:{location}': its huggingface metadata are no JSON: {error}") from None
    for name in ("info", "features", label):
        declared = declared.get(name) if isinstance(declared, dict) else None
    names = declared.get("names", []) if isinstance(declared, dict) else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"data 'parquet:{location}': its huggingface metadata name no classes of {label!r}: {names!r}")
    return tuple(names)


def _opened(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
        file.schema_arrow.names  # noqa: B018 (damaged names are no UTF-8)
        return file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def _read(path: Path, column: str) -> pa.ChunkedArray:
    file = _opened(path)
    if column not in file.schema_arrow.names:
        raise UsageError(f"{path}: no column {column!r}; every file of a data set needs it")
    try:
        return file.read(columns=[column]).column(0)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error


def _labels(paths: list[Path], column: str) -> list[int]:
    values = [value for path in paths for value in _read(path, column).to_pylist()]
    if None in values or not values:
        raise UsageError(
            f"{paths[0].parent}: column {column!r}: must hold labels, found {'nulls' if values else 'none'}"
        )
    if not all(isinstance(value, int) for value in values):
        raise UsageError(f"{paths[0].parent}: column {column!r}: must hold whole numbers in every file")
    return values


def _images(paths: list[Path], column: str, *, name: str, root: Path) -> ParquetImages:
    count = sum(_opened(path).metadata.num_rows for path in paths)
    if sum(_column_bytes(path, column) for path in paths) > MAX_BYTES_IN_MEMORY:
        return ParquetImages(_arrow_copy(paths, column, root / "arrow"), np.arange(count), name=name)
    chunks = [chunk for path in paths for chunk in _read(path, column).chunks]
    if len({chunk.type for chunk in chunks}) > 1:
        raise UsageError(f"{paths[0].parent}: column {column!r}: must be of one type in every file")
    return ParquetImages(pa.chunked_array(chunks), np.arange(count), name=name)


def _column_bytes(path: Path, column: str) -> int:
    metadata = _opened(path).metadata
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(metadata.num_columns)]
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == column)


def _arrow_copy(paths: list[Path], column: str, folder: Path) -> Path:
    """The column of these files as one Arrow file, unless it is there: renamed when whole, so never half a file."""
    states = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    copy = folder / f"{hashlib.sha256(repr((states, column)).encode()).hexdigest()[:16]}.arrow"
    if copy.exists():
        return copy
    folder.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=folder, suffix=".part")
    os.close(handle)
    try:
        _write_arrow(paths, column, unfinished)
        os.replace(unfinished, copy)
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{copy}: cannot be written: {' '.join(str(error).split())}") from error
    finally:
        Path(unfinished).unlink(missing_ok=True)
    return copy


def _write_arrow(paths: list[Path], column: str, target: str) -> None:
    schema = _opened(paths[0]).schema_arrow
    schema = pa.schema([schema.field(column)])
    with pa.ipc.new_file(target, schema) as writer:
        for path in paths:
            for batch in _opened(path).iter_batches(batch_size=_ROWS_A_BATCH, columns=[column]):
                writer.write_batch(batch.cast(schema))
