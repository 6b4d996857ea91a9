"""What a trained network loses when units of a stage change places."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from verydeep.analysis.tensor_split import ImagesAndLabels, as_split, first_images
from verydeep.analysis.unchanged import unchanged
from verydeep.analysis.units import replaced, residual_units, unit_signals
from verydeep.data.seed import generator
from verydeep.errors import UsageError
from verydeep.training.evaluate import evaluate


@final
@dataclass(frozen=True)
class Reordering:
    """What a network does with units in other places.

    Args:    order: name of the place -> name of the unit that stands there, of all units that could move
             kendall_tau: pairs of a stage that kept their order less those that did not, over all pairs: 1 to -1
             error_percent, loss: of the reordered network
    """

    order: dict[str, str]
    kendall_tau: float
    error_percent: float
    loss: float


@contextmanager
def reordered(model: nn.Module, order: Mapping[str, str]) -> Iterator[None]:
    """Within it, modules stand in each other's places.

    Args:    order: name of the place -> name of the module that stands there
    Raises:  UsageError: if a module would stand twice or nowhere, or a name is of no module.
    """
    if sorted(order) != sorted(order.values()):
        raise UsageError(f"order {dict(order)}: each module must stand in one place")
    modules = dict(model.named_modules())
    with replaced(model, {place: modules.get(name, model) for place, name in order.items()}):
        yield


def random_reorderings(
    model: nn.Module,
    data: ImagesAndLabels,
    *,
    num_swaps: int,
    num_draws: int = 10,
    seed: int = 0,
    batch_size: int = 256,
) -> list[Reordering]:
    """Units change places by random swaps of two, in eval mode.

    Two units can swap if they have the same parent and the same shape in and out, and both or neither an own
    pre-activation (the first unit of a pre-activation network has none).

    Args:    data: a split, or images and labels
    Raises:  UsageError: if no two units can swap.
    Source:  Veit et al. 2016, section 4.3 and Fig. 5b
    """
    with unchanged(model):
        stages = _interchangeable(model, unit_signals(model.eval(), first_images(model, data)))
        if not stages:
            raise UsageError(f"model {type(model).__name__}: no two units can change places")
        results = []
        for draw in range(num_draws):
            order = _random_order(stages, num_swaps=num_swaps, stream=generator(seed, draw))
            with reordered(model, order):
                evaluation = evaluate(model, as_split(data), batch_size=batch_size)
            tau = kendall_tau([[stage.index(order[place]) for place in stage] for stage in stages])
            results.append(Reordering(order, tau, evaluation.error_percent, evaluation.loss))
    return results


def _interchangeable(model: nn.Module, signals: Mapping[str, tuple[Tensor, Tensor]]) -> list[list[str]]:
    """Groups of at least two units that can change places, each in running order."""
    units = residual_units(model)
    groups: dict[Any, list[str]] = defaultdict(list)
    for name, (x, y) in signals.items():
        if x.shape == y.shape:
            groups[name.rpartition(".")[0], x.shape, units[name].preact is None].append(name)
    return [names for names in groups.values() if len(names) > 1]


def _random_order(stages: list[list[str]], *, num_swaps: int, stream: torch.Generator) -> dict[str, str]:
    """The result of swaps, each within a stage drawn by its number of units."""
    order = {name: name for names in stages for name in names}
    sizes = torch.tensor([float(len(names)) for names in stages])
    for stage in torch.multinomial(sizes, num_swaps, replacement=True, generator=stream).tolist() if num_swaps else []:
        i, j = torch.randperm(len(stages[stage]), generator=stream)[:2].tolist()
        first, second = stages[stage][i], stages[stage][j]
        order[first], order[second] = order[second], order[first]
    return order


def kendall_tau(permutations: list[list[int]]) -> float:
    """Rank correlation with the original order, pairs counted within each permutation.

    >>> kendall_tau([[0, 1, 2]]), kendall_tau([[2, 1, 0]]), kendall_tau([[1, 0, 2]])
    (1.0, -1.0, 0.3333333333333333)
    """
    signs = [
        1 if first < second else -1
        for permutation in permutations
        for i, first in enumerate(permutation)
        for second in permutation[i + 1 :]
    ]
    return sum(signs) / len(signs)
