"""What a case of the fault suite is, and the batches that the cases share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

NUM_CLASSES = 10


@dataclass(frozen=True)
class Arguments:
    """What `verydeep.diagnose` is called with."""

    model: nn.Module
    images: Tensor
    labels: Tensor | None = None
    loss: Callable[[Any, Tensor], Tensor] | None = None
    optimizer: Optimizer | None = None
    steps: int = 0

    def options(self) -> dict[str, Any]:
        """All but the model and the images."""
        return {name: getattr(self, name) for name in ("labels", "loss", "optimizer", "steps")}


@dataclass(frozen=True)
class Case:
    """A model to diagnose, built when asked for, and the fault in it.

    Args:    name: unique in the suite
             expected: rules that name the fault, each right as the first finding; empty for a healthy model
             make: draws the model and the batch from torch's generator
             needs: package without which the case is skipped
    """

    name: str
    expected: frozenset[str]
    make: Callable[[], Arguments] = field(repr=False)
    needs: str = "torch"

    def build(self) -> Arguments:
        """The same arguments each time; torch's generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make()


def fault(make: Callable[[], Arguments], *rules: str, name: str = "", needs: str = "torch") -> Case:
    return Case(name or make.__name__, frozenset(rules), make, needs)


def healthy(make: Callable[[], Arguments], *, name: str = "", needs: str = "torch") -> Case:
    return Case(name or make.__name__, frozenset(), make, needs)


def images(
    count: int = 32, *, size: int = 8, channels: int = 3, num_classes: int = NUM_CLASSES
) -> tuple[Tensor, Tensor]:
    """Images of mean 0 and variance 1: a coarse pattern for each class, and noise. Labels cycle."""
    labels = torch.arange(count) % num_classes
    patterns = F.interpolate(torch.randn(num_classes, channels, 4, 4), size=(size, size))
    mixed = patterns[labels] + 0.5 * torch.randn(count, channels, size, size)
    return (mixed - mixed.mean()) / mixed.std(), labels


def vectors(count: int = 64, *, features: int = 32, num_classes: int = NUM_CLASSES) -> tuple[Tensor, Tensor]:
    """Vectors of mean 0 and variance 1: a centre for each class, and noise. Labels cycle."""
    labels = torch.arange(count) % num_classes
    mixed = torch.randn(num_classes, features)[labels] + 0.5 * torch.randn(count, features)
    return (mixed - mixed.mean()) / mixed.std(), labels


def tokens(count: int = 16, *, length: int = 12, vocabulary: int = 40) -> tuple[Tensor, Tensor]:
    """Rows of token numbers, each with its class's own tokens in every other place. Labels cycle."""
    labels = torch.arange(count) % NUM_CLASSES
    rows = torch.randint(NUM_CLASSES, vocabulary, (count, length))
    rows[:, ::2] = labels[:, None]
    return rows, labels


def init_normal(model: nn.Module, std: float | None = None) -> nn.Module:
    """Normal weights of the given deviation, or He's of the fan-in; biases 0."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, 0, (2 / fan_in) ** 0.5 if std is None else std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
