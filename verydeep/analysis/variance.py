"""The variance of a signal by depth: of random residual stacks, the figure's, and of any network's units.

Shape legend: R stacks, D width, N samples, K units. Variance is over samples and units together, biased.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.analysis.draw import Draws
from verydeep.analysis.unchanged import unchanged
from verydeep.data.seed import generator
from verydeep.errors import UsageError, resolve
from verydeep.nn.unit import ResidualUnit
from verydeep.probe import Probe

_CHUNK = 10  # stacks computed at once: a signal of theirs, 1 MB, stays in the cache


@final
@dataclass(frozen=True)
class Stack:
    """h + a W'' relu(W' relu(f^(h))), K times: each ReLU before its weight layer, so that a branch keeps its size.

    Args:    scaled: a = 1/sqrt(K), else 1
             normalised: f^ is batch norm without gain and shift, else the identity
             zero: W'' = 0, so that the branch adds exactly nothing and is not computed
    """

    scaled: bool = False
    normalised: bool = False
    zero: bool = False


STACKS: dict[str, Stack] = {
    "plain": Stack(),
    "scaled": Stack(scaled=True),
    "norm": Stack(normalised=True),
    "zero_init": Stack(zero=True),
}


def stack_variances(
    kind: str, *, num_draws: int = 500, seed: int = 0, num_units: int = 50, width: int = 100, batch_size: int = 256
) -> Tensor:
    """The variance after each unit of random stacks, weights N(0, 2/width) and no biases, samples N(0, 1).

    float32: the signal grows to 1e9 at most, far from its limit, and each unit adds a relative error of about 1e-6,
    thousands of times less than the spread over draws.

    Args:    kind: of STACKS
    Returns: float64 (num_draws, num_units + 1), independent draws; the first column is the input's
    Raises:  UsageError: if the kind is unknown.
    Source:  the chapter, Fig. 11.2
    """
    stack = resolve("kind", kind, STACKS)
    variances = []
    for chunk, first in enumerate(range(0, num_draws, _CHUNK)):
        stream = generator(seed, chunk)
        h = torch.randn(min(_CHUNK, num_draws - first), width, batch_size, generator=stream)  # (R, D, N)
        of_chunk = [_variance(h)]
        for _ in range(num_units):
            if not stack.zero:
                h = h + _branch(stack, h, num_units=num_units, stream=stream)
            of_chunk.append(_variance(h))
        variances.append(torch.stack(of_chunk, 1))
    return torch.cat(variances)


def _branch(stack: Stack, h: Tensor, *, num_units: int, stream: torch.Generator) -> Tensor:
    num_stacks, width, batch_size = h.shape
    if stack.normalised:
        h = F.layer_norm(h, (batch_size,))  # over the samples, which are last here: batch norm
    for _ in range(2):
        weight = torch.randn(num_stacks, width, width, generator=stream).mul_(math.sqrt(2 / width))
        h = torch.bmm(weight, h.relu())
    return h / math.sqrt(num_units) if stack.scaled else h


def _variance(h: Tensor) -> Tensor:
    """Of each stack; in two passes, fifteen times faster than `Tensor.var` over contiguous samples on the CPU."""
    centred = h - h.mean((1, 2), keepdim=True)
    return centred.square().mean((1, 2)).double()


def draws(kind: str, depth: int, *, num_draws: int = 500, seed: int = 0) -> Draws:
    """Draws of the figure's number: the variance after `depth` of 50 units.

    Raises:  UsageError: if the kind is unknown or the depth not in 0..50.
    """
    if not 0 <= depth <= 50:
        raise UsageError(f"depth {depth}: the figure's stacks have 50 units; nearest {min(max(depth, 0), 50)}")
    values = stack_variances(kind, num_draws=num_draws, seed=seed)[:, depth]
    return Draws(f"{kind}-{depth}", values, seed=seed, pool=num_draws, independent=True)


@torch.no_grad()
def variance_by_depth(
    model: nn.Module, images: Tensor, *, unit_type: type[nn.Module] = ResidualUnit
) -> dict[str, float]:
    """The variance of each unit's output, over everything together, in the model's own mode.

    A network that was just built shows what its norms do in training mode; in eval mode they divide by 1.

    Args:    images: what the model takes
             unit_type: the modules that count as units; of torchvision's, say, `BasicBlock`
    Returns: module name -> variance, in the order in which the units ran; a unit that ran twice has its last
    Raises:  UsageError: if the model has no such module.
    """
    names = {name for name, module in model.named_modules() if isinstance(module, unit_type)}
    if not names:
        raise UsageError(f"model {type(model).__name__}: has no {unit_type.__name__} among its modules")
    with unchanged(model), Probe(model, lambda signal: signal.double().var(correction=0)) as probe:
        model(images)
    return {record.site: record.value.item() for record in probe.records if record.site in names}
