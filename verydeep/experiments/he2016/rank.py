"""Whether a table's errors stand in the published order: Spearman's rank correlation, with a bootstrap over seeds."""

import itertools
import math
import random
import statistics
from collections.abc import Sequence

from verydeep.experiments.experiment import Results
from verydeep.experiments.he2016.cell import FAIL, FIGURE, Cell, Ordering
from verydeep.experiments.he2016.network import NETWORKS

DRAWS = 2_000
LEVEL = 0.95
CHANCE = 0.05  # of random orders that may reach a correlation that counts
FAILED = 100.0  # stands for `fail`: above every published number; failures are ties


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's correlation of the ranks, ties at their mean rank; 0 where one side is constant.

    >>> spearman([1, 2, 3, 4], [10, 20, 40, 30])
    0.8
    """
    ranks = _ranks(a), _ranks(b)
    if any(len(set(values)) == 1 for values in ranks):
        return 0.0
    return round(statistics.correlation(*ranks), 12)


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def bootstrap(seeds: Sequence[Sequence[float]], published: Sequence[float]) -> tuple[float, float]:
    """The central 95 % of the correlation when the seeds of each entry are drawn again, with replacement.

    Args:    seeds: of each entry, an error a seed
    """
    stream = random.Random(0)
    draws = sorted(
        spearman([statistics.median(stream.choices(values, k=len(values))) for values in seeds], published)
        for _ in range(DRAWS)
    )
    cut = round(DRAWS * (1 - LEVEL) / 2)
    return draws[cut], draws[-1 - cut]


def share_of_orders(a: Sequence[float], b: Sequence[float]) -> float:
    """The share of the orders of `a` whose correlation with `b` is at least its own; of many, of random ones.

    >>> share_of_orders([1, 2, 3, 4], [10, 20, 30, 40]) == 1 / 24
    True
    """
    stream = random.Random(0)
    few = math.factorial(len(a)) <= DRAWS
    orders = list(itertools.permutations(a)) if few else [a, *(stream.sample(list(a), len(a)) for _ in range(DRAWS))]
    least = spearman(a, b)
    return sum(spearman(order, b) >= least for order in orders) / len(orders)


def rank_cells(cells: Sequence[Cell]) -> list[Cell]:
    """An entry for each data set of a table, for the correlation of all its errors with the published ones."""
    ranked = [cell for cell in cells if cell.networks and cell.published != FIGURE]
    by_data: dict[str, list[Cell]] = {}
    for cell in ranked:
        by_data.setdefault(NETWORKS[cell.networks[0]].data, []).append(cell)
    return [
        _rank_cell("rank-correlation" if data == "cifar10" else f"rank-correlation-{data}", of_data)
        for data, of_data in by_data.items()
    ]


def _rank_cell(name: str, cells: Sequence[Cell]) -> Cell:
    """It holds where the interval lies above 0, and few random orders reach the correlation."""
    networks = tuple(dict.fromkeys(name for cell in cells for name in cell.networks))

    def columns(results: Results) -> tuple[list[list[float]], list[float]]:
        measured = [cell for cell in cells if all(name in results for name in cell.networks)]
        seeds = [cell.least_errors(results) for cell in measured]
        return seeds, [FAILED if cell.published == FAIL else cell.published for cell in measured]

    def interval(results: Results) -> tuple[float, float]:
        return bootstrap(*columns(results))

    def by_seed(results: Results) -> list[float]:
        seeds, published = columns(results)
        return [spearman(errors, published) for errors in zip(*seeds, strict=True)]

    def medians(results: Results) -> tuple[list[float], list[float]]:
        seeds, published = columns(results)
        return [statistics.median(values) for values in seeds], published

    def correlation(results: Results) -> float:
        return spearman(*medians(results))

    def chance(results: Results) -> float:
        return share_of_orders(*medians(results))

    return Cell(
        name,
        "measured errors stand in the published order",
        FIGURE,
        networks,
        Ordering(
            f"the medians' correlation has an interval above 0, and fewer than {CHANCE:.0%} of random orders reach it",
            networks,
            lambda results: interval(results)[0] > 0 and chance(results) < CHANCE,
            said=lambda results: f"{correlation(results):.2f}, which {chance(results):.1%} of random orders reach",
        ),
        values=by_seed,
        quantity="Spearman's rank correlation of errors with published ones; interval: 95 % for medians, bootstrap "
        "over seeds",
        interval=interval,
        partial=True,
        least_seeds=2,
    )
