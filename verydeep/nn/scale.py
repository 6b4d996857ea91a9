"""How branches are kept small at the start, by name. `unit.py` puts these into branches.

SCALES maps a name to its rule: a multiplier at the branch's end, scalar biases inside it, and what is done to its
weights once they are initialised.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from verydeep.nn.init import he_std


class Multiplier(nn.Module):
    """y = a x with one scalar a, learnt or fixed.

    Args:    value: a at the start
             learnable: whether a is a parameter
    """

    def __init__(self, value: float, *, learnable: bool = True) -> None:
        super().__init__()
        # a fixed a is a number: exact in every dtype, and not lost when a network built on meta is given memory
        self.weight = nn.Parameter(torch.tensor(value)) if learnable else value

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class ScalarBias(nn.Module):
    """y = x + b with one learnt scalar b, zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def fixup_scale(num_units: int, num_layers: int) -> float:
    """Fixup's factor on the weights of a branch, except its last layer: L^(-1/(2m-2)).

    Args:    num_units: L, residual units of the network
             num_layers: m, weighted layers of one branch, at least 2
    Source:  Zhang et al. 2019, section 3

    >>> round(fixup_scale(54, 2), 5), round(fixup_scale(54, 3), 5)
    (0.13608, 0.36889)
    """
    return num_units ** (-1 / (2 * num_layers - 2))


def zero_last(convs: Sequence[nn.Conv2d], norm: nn.Module | None, num_units: int) -> None:
    """Zero the gain of the norm that ends the branch, else its last convolution, so that the unit starts as h.

    A norm followed by a convolution is not zeroed: in a pre-activation branch the ReLU behind it would pass neither
    signal nor gradient at exactly 0, for ever.

    Source:  Goyal et al. 2017, section 5.1, for the norm
    """
    nn.init.zeros_((convs[-1] if norm is None else norm).get_parameter("weight"))


def fixup(convs: Sequence[nn.Conv2d], norm: nn.Module | None, num_units: int) -> None:
    """He's weights times `fixup_scale`, the last convolution zero.

    Source:  Zhang et al. 2019, section 3, rules 1 and 2
    """
    for conv in convs[:-1]:
        nn.init.normal_(conv.weight, std=he_std(conv) * fixup_scale(num_units, len(convs)))
    nn.init.zeros_(convs[-1].weight)


@dataclass(frozen=True)
class Scale:
    """One way of keeping branches small.

    Args:    multiplier: from the number of units K to the module at the end of a branch
             scalar_biases: one before each convolution and activation, instead of the convolutions' own
             initialise: (convolutions of a branch, norm that ends it, K) -> None
    """

    multiplier: Callable[[int], nn.Module] | None = None
    scalar_biases: bool = False
    initialise: Callable[[Sequence[nn.Conv2d], nn.Module | None, int], None] | None = None


SCALES: dict[str, Scale] = {
    "none": Scale(),
    # Var(h_K) = (1 + 1/K)^K Var(x) <= e Var(x): the chapter, section 3
    "inverse_sqrt": Scale(multiplier=lambda num_units: Multiplier(1 / math.sqrt(num_units), learnable=False)),
    "zero_init": Scale(initialise=zero_last),
    # De and Smith 2020: a learnt scalar, zero at the start, ends each branch, which has no norm
    "skipinit": Scale(multiplier=lambda num_units: Multiplier(0.0)),
    # Bachlechner et al. 2020: the same scalar, with or without norms in the branch
    "rezero": Scale(multiplier=lambda num_units: Multiplier(0.0)),
    # Zhang et al. 2019: multipliers start at 1, the weights carry the scale
    "fixup": Scale(multiplier=lambda num_units: Multiplier(1.0), scalar_biases=True, initialise=fixup),
}
