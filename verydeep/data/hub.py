"""Data sets of the Hugging Face hub, or in a folder as its library reads and writes them. Needs the extra `hub`.

Images stay encoded in the library's Arrow files, which each worker process maps.
"""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, final

import numpy as np
from PIL import Image

from verydeep.data.image import read_image
from verydeep.data.image_list import ImageList
from verydeep.data.source import Labelled, Source, arrange, labels_of
from verydeep.errors import RunError, UsageError

PARTS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "dev": "val", "test": "test"}
LABEL_NAMES = ("label", "labels", "fine_label")  # which of several label columns is meant

_log = logging.getLogger("verydeep")


@final
class HubImages(ImageList):
    """The image column of a `datasets.Dataset`, whose rows are bytes, or a path."""

    def __init__(self, dataset: Any, column: str, rows: np.ndarray, *, name: str) -> None:
        self._dataset, self._column, self._rows, self._name = dataset, column, rows, name

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, row: int) -> Image.Image:
        place = int(self._rows[row])
        value = self._dataset[place][self._column] or {}
        name = f"{self._name} row {place} ({value.get('path') or 'without a path'})"
        if value.get("bytes") is None and value.get("path") is None:
            raise RunError(f"{name}: cannot be read: it has neither bytes nor a path")
        return read_image(value["path"] if value.get("bytes") is None else value["bytes"], name=name)

    def take(self, rows: np.ndarray) -> "HubImages":
        return HubImages(self._dataset, self._column, self._rows[rows], name=self._name)


def load_hub(location: str, root: Path) -> Source:
    """A data set by its name on the hub, NAME or NAME:CONFIG; `root` is not read, the library has a cache of its own.

    A folder is read where there is one of that name: parquet and other files that `datasets.load_dataset` knows, or
    what `save_to_disk` wrote. Nothing that comes with the data is executed.

    The image column is the first of images; the label column that of classes, integers or texts (of several, `label`,
    `labels` or `fine_label`). A part whose labels are unknown (-1) is left out, with a warning.

    Raises:  UsageError: if the library is not installed, or there is no such data set, image or label column
    """
    library = _library()
    sets = _parts(library, location)
    features = next(iter(sets.values())).features
    image, label = _image_column(library, features, location), _label_column(library, features, location)
    columns = _known_labels(sets, label, location)
    classes = _class_names(library, features[label], columns)
    position = {name: place for place, name in enumerate(classes)}
    parts = {}
    for part, values in columns.items():
        dataset = sets[part].select_columns([image]).cast_column(image, library.Image(decode=False))
        images = HubImages(dataset, image, np.arange(len(dataset)), name=f"{location} {part}")
        numbers = values if _is_class(library, features[label]) else [position[str(value)] for value in values]
        parts[part] = Labelled(images, labels_of(numbers))
    return dataclasses.replace(arrange(classes, parts), keep_small=True)


def _parts(library: ModuleType, location: str) -> dict[str, Any]:
    """The parts that have a place here, train, val and test; others are named in a warning."""
    found = _load(library, location)
    unused = sorted(set(found) - set(PARTS))
    sets = {PARTS[name]: dataset for name, dataset in found.items() if name in PARTS}
    if not sets:
        raise UsageError(f"data 'hub:{location}': no part train, validation or test among {', '.join(unused)}")
    if unused:
        _log.warning("hub %s: not used: %s", location, ", ".join(unused))
    return sets


def _known_labels(sets: dict[str, Any], column: str, location: str) -> dict[str, list[Any]]:
    """The labels of each part, without the parts that have unknown ones."""
    columns = {part: dataset[column][:] for part, dataset in sets.items()}
    unknown = [part for part, values in columns.items() if not values or any(v in (None, -1) for v in values)]
    for part in unknown:
        _log.warning("hub %s: %s has images without a label and is not used", location, part)
    if len(unknown) == len(columns):
        raise UsageError(f"data 'hub:{location}': column {column!r} holds no labels in any part")
    return {part: values for part, values in columns.items() if part not in unknown}


def _library() -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise UsageError("data hub: datasets is not installed; pip install 'verydeep[hub]'") from None
    return datasets


@contextmanager
def _without_bars(library: ModuleType) -> Iterator[None]:
    """Output that is redirected has no carriage returns."""
    shown = not library.utils.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bars()


def _load(library: ModuleType, location: str) -> dict[str, Any]:
    """The parts of a data set by the library's names."""
    folder = Path(location).expanduser()
    name, _, config = (str(folder), "", "") if folder.is_dir() else location.partition(":")
    try:
        with _without_bars(library):
            written = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
            loaded = library.load_from_disk(str(folder)) if written else library.load_dataset(name, config or None)
    except (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"data 'hub:{location}': cannot be loaded: {reason}") from None
    return dict(loaded) if isinstance(loaded, dict) else {"train": loaded}


def _image_column(library: ModuleType, features: Any, location: str) -> str:
    for name, feature in features.items():
        if isinstance(feature, library.Image):
            return name
    raise UsageError(f"data 'hub:{location}': no image column among {_described(features)}")


def _label_column(library: ModuleType, features: Any, location: str) -> str:
    classes = [name for name, feature in features.items() if _is_class(library, feature)]
    values = [name for name, feature in features.items() if _is_label(library, feature)]
    for candidates in (classes, values):
        named = [name for name in LABEL_NAMES if name in candidates]
        if named or len(candidates) == 1:
            return (named or candidates)[0]
    found = "several label columns, none named label," if classes or values else "no label column"
    raise UsageError(f"data 'hub:{location}': {found} among {_described(features)}")


def _is_class(library: ModuleType, feature: Any) -> bool:
    return isinstance(feature, library.ClassLabel)


def _is_label(library: ModuleType, feature: Any) -> bool:
    return isinstance(feature, library.Value) and (feature.dtype == "string" or "int" in feature.dtype)


def _class_names(library: ModuleType, feature: Any, columns: dict[str, list[Any]]) -> tuple[str, ...]:
    """The names of a column of classes, else the values that there are, sorted."""
    if _is_class(library, feature):
        return tuple(feature.names)
    return tuple(map(str, sorted({value for values in columns.values() for value in values})))


def _described(features: Any) -> str:
    return ", ".join(f"{name} ({type(feature).__name__})" for name, feature in features.items())
