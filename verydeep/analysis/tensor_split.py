"""Images and labels that are tensors already, as a `Split`: analyses take either."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from verydeep.data import Split
from verydeep.errors import UsageError

ImagesAndLabels = Split | tuple[Tensor, Tensor]


@final
@dataclass(eq=False, repr=False)
class TensorSplit(Split):
    """Images that are ready for a network, never augmented.

    Args:    images: (N, ...), normalised as the network expects them
             labels: int64 (N,)
    Raises:  UsageError: if there are not as many labels as images.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise UsageError(f"labels {len(self.labels)}: there are {len(self.images)} images; give one label for each")

    def batches(
        self, index_batches: Iterable[Tensor], *, epoch: int | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        for index in index_batches:
            yield self.images[index].to(device), self.labels[index].to(device)

    def with_labels(self, labels: Tensor) -> "TensorSplit":
        return TensorSplit(self.images, labels)


def as_split(data: ImagesAndLabels) -> Split:
    """A split as it is, or the pair (images, labels) as a split."""
    return data if isinstance(data, Split) else TensorSplit(*data)


def all_batches(data: ImagesAndLabels, *, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The images in order, `batch_size` at once, with their labels, on a device."""
    split = as_split(data)
    return split.batches(torch.arange(len(split)).split(batch_size), epoch=None, device=device)


def first_images(model: torch.nn.Module, data: ImagesAndLabels) -> Tensor:
    """Two images on the model's device, to see shapes with."""
    images, _ = next(all_batches(data, batch_size=2, device=next(model.parameters()).device))
    return images
