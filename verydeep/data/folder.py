"""Image folders: one sub-folder a class, with or without train/, val/ and test/ above.

Links are followed; hidden files and folders, and files that are no images by their ending, are left out.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import final

import numpy as np
from PIL import Image

from verydeep.data.holdout import class_sizes, fifth_of_each, hold_out
from verydeep.data.image import read_image
from verydeep.data.image_list import ImageList
from verydeep.data.source import Labelled, Source, arrange, labels_of
from verydeep.errors import UsageError, nearest

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

_PARTS = ("train", "val", "test")
_SPLIT_SEED = 0  # not the run's: every run has the same test set

_log = logging.getLogger("verydeep")


@final
class PathImages(ImageList):
    """Image files; the paths are kept in one block of bytes, about their length each."""

    def __init__(self, paths: list[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._block = b"".join(encoded)
        self._ends = np.cumsum([len(path) for path in encoded], dtype=np.int64)
        self._rows = np.arange(len(paths))

    def __len__(self) -> int:
        return len(self._rows)

    def path(self, row: int) -> str:
        """Where the image is."""
        place = self._rows[row]
        start = self._ends[place - 1] if place else 0
        return os.fsdecode(self._block[start : self._ends[place]])

    def read(self, row: int) -> Image.Image:
        return read_image(self.path(row))

    def take(self, rows: np.ndarray) -> "PathImages":
        taken = PathImages.__new__(PathImages)
        taken._block, taken._ends, taken._rows = self._block, self._ends, self._rows[rows]
        return taken


def load_folder(location: str, root: Path) -> Source:
    """The images below a folder; `root` is not read.

    The layouts: DIR/<class>/<image>, of which a fixed fifth of each class becomes the test set; or train/, val/, test/
    (any of them) with class sub-folders, where val/ is the test set if there is no test/. Class names are the
    sub-folders' names, sorted; those of train/ where there is one.

    Raises:  UsageError: if the folder is missing, has no class sub-folders, no images, or an empty class
    """
    folder = Path(location).expanduser()
    if not folder.is_dir():
        raise UsageError(f"data 'folder:{location}': no such folder; expected one with a sub-folder for each class")
    parts = [part for part in _PARTS if _sub_folders(folder / part)]
    if not parts:
        classes = _class_names(folder)
        return with_fifth_held_out(classes, _read_part(folder, classes), f"folder {folder}")
    others = [name for name in _sub_folders(folder) if name not in parts]
    if others:
        _log.warning("folder %s: not used beside %s: %s", folder, ", ".join(parts), ", ".join(others))
    classes = _class_names(folder / parts[0])
    return arrange(classes, {part: _read_part(folder / part, classes) for part in parts})


def with_fifth_held_out(classes: tuple[str, ...], everything: Labelled, name: str) -> Source:
    """The source of data without parts: a fixed fifth of each class is the test set."""
    counts = fifth_of_each(class_sizes(everything.labels, len(classes)))
    train, test = (everything.take(rows) for rows in hold_out(everything.labels, counts, seed=_SPLIT_SEED))
    if not len(test.labels):
        _log.warning("%s: one image a class, so none is held out: there is no test set", name)
        return Source(classes, everything, None, None)
    return Source(classes, train, None, test)


def _class_names(folder: Path) -> tuple[str, ...]:
    classes = tuple(_sub_folders(folder))
    if not classes:
        raise UsageError(f"data 'folder:{folder}': no class sub-folders; expected {folder}/<class>/<image>")
    return classes


def _read_part(folder: Path, classes: tuple[str, ...]) -> Labelled:
    """The images of each class sub-folder; every one must have some, and be among `classes`."""
    found = {name: sorted(image_paths(folder / name)) for name in _class_names(folder)}
    empty = [name for name, paths in found.items() if not paths]
    if empty:
        which = "each class" if len(empty) == len(found) else ", ".join(f"class {name!r}" for name in empty)
        raise UsageError(
            f"data 'folder:{folder}': {which}: 0 images; a class needs at least 1 ({' '.join(EXTENSIONS)})"
        )
    for name in found:
        if name not in classes:
            alike = ", ".join(repr(known) for known in nearest(name, classes))
            raise UsageError(f"data 'folder:{folder}': class {name!r}: not in train/; nearest: {alike}")
    position = {name: label for label, name in enumerate(classes)}
    labels = [position[name] for name, paths in found.items() for _ in paths]
    return Labelled(PathImages([path for paths in found.values() for path in paths]), labels_of(labels))


def _sub_folders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def image_paths(folder: Path) -> Iterator[str]:
    """Images at any depth below a class folder; a link that leads back into a folder already seen is not followed."""
    seen = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        identity = os.stat(place)
        if (identity.st_dev, identity.st_ino) in seen:
            folders.clear()
            continue
        seen.add((identity.st_dev, identity.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.lower().endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(place, name)
