"""Encoded images, read one at a time: `ImageList`, and what is done with a whole one.

Image folders and parquet files provide lists; `load_data` verifies and decodes them, `FileSplit` reads them in workers.
"""

import abc
import itertools
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from verydeep.data.transform import square
from verydeep.errors import RunError

T = TypeVar("T")

_log = logging.getLogger("verydeep")


class ImageList(abc.ABC):
    """Images by row; picklable, and compact enough to be copied to each worker process."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def read(self, row: int) -> Image.Image:
        """The image, decoded, upright, in RGB.

        Raises:  RunError: if it cannot be read, naming it
        """

    @abc.abstractmethod
    def take(self, rows: np.ndarray) -> Self:
        """The list of these rows, int64 (M,), in this order."""


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def default_workers() -> int:
    """Worker processes when none are asked for: a core each, shared among the training processes of this machine."""
    return max(1, num_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def in_threads(function: Callable[[range], T], count: int, *, chunk: int = 64) -> list[T]:
    """The function's results on 0..count cut into ranges, in order; Pillow decodes outside Python's lock."""
    ranges = [range(start, min(start + chunk, count)) for start in range(0, count, chunk)]
    with ThreadPoolExecutor(num_cores()) as pool:
        return list(pool.map(function, ranges))


def readable(images: ImageList) -> np.ndarray:
    """The rows that decode to the end; each of the others is named in a warning.

    Returns: int64 (M,), ascending
    """

    def check(rows: range) -> list[int]:
        return [row for row in rows if _is_readable(images, row)]

    return np.array([*itertools.chain(*in_threads(check, len(images)))], dtype=np.int64)


def _is_readable(images: ImageList, row: int) -> bool:
    try:
        images.read(row)
    except RunError as error:
        _log.warning("skipped: %s", error)
        return False
    return True


def decode(images: ImageList, side: int, *, resize: bool) -> Tensor | None:
    """All pixels of a list of small images.

    Args:    side: of the result, pixels
             resize: whether images of another size are resized
    Returns: uint8 (N, side, side, 3); None if an image has another size and must not be resized
    Raises:  RunError: if an image cannot be read, naming it
    """
    pixels = torch.empty(len(images), side, side, 3, dtype=torch.uint8)
    array = pixels.numpy()

    def fill(rows: range) -> bool:
        for row in rows:
            image = square(images.read(row), side) if resize else images.read(row)
            if image.size != (side, side):
                return False
            array[row] = np.asarray(image)
        return True

    return pixels if all(in_threads(fill, len(images))) else None
