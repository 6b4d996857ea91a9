"""An observer reads a network in the course of its training; what it says becomes lines of the run's metrics."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Observer:
    """What is read of a network, and when.

    Args:    read: from the network in training mode, images and labels to JSON values; it must leave the network as it
                 was. The images are the first of the training set, not augmented
             fractions: of the run, 0 before its first step, 1 after its last
             num_images: images that are read with
    """

    read: Callable[[nn.Module, Tensor, Tensor], dict[str, Any]]
    fractions: tuple[float, ...] = (0.0, 1.0)
    num_images: int = 128

    def is_due(self, step: int, total: int) -> bool:
        """Whether the network is read after this many steps.

        >>> [step for step in range(11) if Observer(dict, (0.0, 0.25, 1.0)).is_due(step, 10)]
        [0, 2, 10]
        """
        return step in (round(fraction * total) for fraction in self.fractions)
