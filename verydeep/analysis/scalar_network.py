"""The scalar networks of the shattered-gradients figure, many at once as batched matrices, with their derivatives.

Shape legend: R networks, D width, n inputs. `shatter.py` draws from these.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from verydeep.errors import resolve
from verydeep.nn.scale import Multiplier
from verydeep.nn.unit import ResidualUnit

WIDTH = 100
FIRST_BIAS_STD = 1.0
HIDDEN_BIAS_STD = 0.1


@final
@dataclass(frozen=True)
class ScalarKind:
    """One of the figure's networks from a scalar to a scalar; every ReLU stands before a weight layer.

    Plain: y = V relu(W_L relu(... W_2 relu(w x + b))) with L hidden layers. Residual: h = w x + b, then K units
    h + a W'' relu(W' relu(h)), then y = V relu(h).

    Args:    depth: L, hidden layers of a plain network; K, units of a residual one
             residual: whether it is one
             scaled: a = 1/sqrt(K), else 1
             pool: networks that 500 draws are resampled from; None: as many as independent draws need
    """

    depth: int
    residual: bool = False
    scaled: bool = True
    pool: int | None = 300

    @property
    def num_matrices(self) -> int:
        """Weight layers between the first and the last."""
        return 2 * self.depth if self.residual else self.depth - 1

    @property
    def branch_scale(self) -> float:
        return 1 / math.sqrt(self.depth) if self.scaled else 1.0


KINDS: dict[str, ScalarKind] = {
    "shallow": ScalarKind(1, pool=None),
    "plain24": ScalarKind(24),
    "plain50": ScalarKind(50),
    "plain100": ScalarKind(100),
    "residual100": ScalarKind(100, residual=True, pool=200),
    "residual100_unscaled": ScalarKind(100, residual=True, scaled=False, pool=200),
}


@final
@dataclass(frozen=True, eq=False)
class ScalarNetworks:
    """R networks of one kind.

    Args:    kind: what they are
             first, first_bias: w and b, (R, D, 1)
             weights, biases: of the layers between, (num_matrices, R, D, D) and (num_matrices, R, D, 1)
             last: V, (R, 1, D)
    """

    kind: ScalarKind
    first: Tensor
    first_bias: Tensor
    weights: Tensor
    biases: Tensor
    last: Tensor

    def value_and_derivative(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """y and dy/dx of each network at each input, in one pass: value and derivative go forward side by side.

        Shape:   (n,) -> (R, n), (R, n)
        """
        value = self.first * inputs + self.first_bias
        h = torch.stack((value, self.first.expand_as(value)), dim=2)  # (R, D, 2, n)
        if self.kind.residual:
            for k in range(self.kind.depth):
                branch = self._layer(2 * k + 1, self._layer(2 * k, h))
                h = h.add_(branch, alpha=self.kind.branch_scale)
        else:
            for layer in range(self.kind.num_matrices):
                h = self._layer(layer, h)
        y = torch.bmm(self.last, _relu(h).flatten(2)).unflatten(2, (2, -1))  # (R, 1, 2, n)
        return y[:, 0, 0], y[:, 0, 1]

    def _layer(self, index: int, h: Tensor) -> Tensor:
        """W relu(h) + b for the values, W times the masked derivative."""
        z = torch.bmm(self.weights[index], _relu(h).flatten(2)).view_as(h)
        z[:, :, 0] += self.biases[index]
        return z

    def module(self, index: int) -> nn.Sequential:
        """One of the networks as a module, (n, 1) -> (n, 1)."""
        network = _make_module(self.kind, width=self.first.shape[1]).to(self.first.dtype)
        layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
        weights = [self.first[index], *self.weights[:, index], self.last[index]]
        biases = [self.first_bias[index], *self.biases[:, index], torch.zeros(1)]
        with torch.no_grad():
            for layer, weight, bias in zip(layers, weights, biases, strict=True):
                layer.weight.copy_(weight)
                layer.bias.copy_(bias.reshape(-1))
        return network


def _relu(h: Tensor) -> Tensor:
    """ReLU of the values h[:, :, 0]; the derivatives h[:, :, 1] pass where it does."""
    return h * (h[:, :, :1] > 0)


def draw_networks(
    kind: str, num_networks: int, *, generator: torch.Generator, dtype: torch.dtype = torch.float32, width: int = WIDTH
) -> ScalarNetworks:
    """Random networks: weights N(0, 2/fan-in), first biases N(0, 1), hidden biases N(0, 0.1^2), no last bias.

    The figure's source is silent about biases. With none, the derivative takes two values, one on each side of 0; these
    stds give all of its correlations.

    Args:    kind: of KINDS
    Raises:  UsageError: if the kind is unknown.
    Source:  He et al. 2015 (Delving deep into rectifiers), Eq. 10, for the weights
    """
    spec = resolve("kind", kind, KINDS)

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).mul_(std)

    return ScalarNetworks(
        spec,
        first=normal(num_networks, width, 1, std=math.sqrt(2)),
        first_bias=normal(num_networks, width, 1, std=FIRST_BIAS_STD),
        weights=normal(spec.num_matrices, num_networks, width, width, std=math.sqrt(2 / width)),
        biases=normal(spec.num_matrices, num_networks, width, 1, std=HIDDEN_BIAS_STD),
        last=normal(num_networks, 1, width, std=math.sqrt(2 / width)),
    )


def _make_module(kind: ScalarKind, *, width: int) -> nn.Sequential:
    def layer() -> list[nn.Module]:
        return [nn.ReLU(), nn.Linear(width, width)]

    def unit() -> ResidualUnit:
        return ResidualUnit(nn.Sequential(*layer(), *layer(), Multiplier(kind.branch_scale, learnable=False)))

    hidden: list[nn.Module] = []
    for _ in range(kind.depth if kind.residual else kind.depth - 1):
        hidden += [unit()] if kind.residual else layer()
    return nn.Sequential(nn.Linear(1, width), *hidden, nn.ReLU(), nn.Linear(width, 1))
