"""What a data set's loader returns, before sizes, statistics and augmentation are decided: `Source`.

The loaders by name make sources; `load_data` turns one into a `Data`.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from verydeep.data.image_list import ImageList


@dataclass(frozen=True)
class Labelled:
    """Images, decoded (uint8 (N, H, W, C)) or encoded, and their labels (int64 (N,))."""

    images: Tensor | ImageList
    labels: Tensor

    def take(self, rows: Tensor) -> "Labelled":
        """These rows, int64 (M,), in this order."""
        images = self.images[rows] if isinstance(self.images, Tensor) else self.images.take(rows.numpy())
        return Labelled(images, self.labels[rows])


@dataclass(frozen=True)
class Source:
    """A data set as found: class names, parts, and what its images are like.

    Args:    channels: 1 for grey data, else 3
             flip: whether a mirrored image still shows its class
             keep_small: whether small square images of one size stay at it, when no other size is asked for
    """

    classes: tuple[str, ...]
    train: Labelled | None
    validation: Labelled | None
    test: Labelled | None
    channels: int = 3
    flip: bool = True
    keep_small: bool = False

    @property
    def parts(self) -> list[Labelled]:
        """Those of train, validation and test that there are."""
        return [part for part in (self.train, self.validation, self.test) if part is not None]

    def map(self, function: Callable[[Labelled], Labelled]) -> "Source":
        """This source with the function applied to each part."""
        parts = (self.train, self.validation, self.test)
        train, validation, test = (None if part is None else function(part) for part in parts)
        return dataclasses.replace(self, train=train, validation=validation, test=test)


def arrange(classes: tuple[str, ...], parts: dict[str, Labelled]) -> Source:
    """The source with parts named `train`, `val`, `test`: without `test`, `val` is the test set."""
    if "test" in parts:
        return Source(classes, parts.get("train"), parts.get("val"), parts["test"])
    return Source(classes, parts.get("train"), None, parts.get("val"))


def labels_of(values: list[int]) -> Tensor:
    """Labels as splits keep them: int64 (N,)."""
    return torch.tensor(values, dtype=torch.int64)
