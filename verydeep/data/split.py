"""What training and evaluation see of a data set: `Split`, labels and batches by index.

`ResidentSplit` keeps decoded pixels on the device; `FileSplit` decodes images one by one in worker processes.
"""

import abc
from collections.abc import Iterable, Iterator
from typing import Self

import torch
from torch import Tensor


class Split(abc.ABC):
    """Labelled images whose batches are made on the device.

    A split that augments does so with an `epoch` alone, each draw a function of (seed, epoch, sample index); the
    validation and test splits of a `Data` never augment.
    """

    labels: Tensor  # int64 (N,), on the CPU

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} images)"

    @abc.abstractmethod
    def batches(
        self, index_batches: Iterable[Tensor], *, epoch: int | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches with these samples, in this order.

        Args:    index_batches: int64 (N,) each; N may differ from one to the next
                 epoch: number of the epoch whose augmentation is drawn; None: no augmentation
                 device: where the batches are made
        Returns: an iterator over (images, labels): float32 (N, C, H, W) in channels_last, normalised; int64 (N,)
        Raises:  RunError: if an image is unreadable, naming it
        """

    @abc.abstractmethod
    def with_labels(self, labels: Tensor) -> Self:
        """The same images under other labels, int64 (N,)."""

    def with_seed(self, seed: int) -> Self:
        """The same images, augmented by the draws of another seed; itself, if it never augments."""
        return self
