"""Whether a table's errors stand in the published order: Spearman's rank correlation, with a bootstrap over seeds."""

import random
import statistics
from collections.abc import Sequence

from verydeep.experiments.experiment import Results
from verydeep.experiments.he2016.cell import ERROR, FAIL, FIGURE, Cell, Ordering

DRAWS = 2_000
LEVEL = 0.95
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


def rank_cell(cells: Sequence[Cell]) -> Cell:
    """An entry for the correlation of a whole table; it holds where the interval lies above 0."""
    ranked = [cell for cell in cells if cell.networks and cell.published != FIGURE]
    networks = tuple(dict.fromkeys(name for cell in ranked for name in cell.networks))

    def columns(results: Results) -> tuple[list[list[float]], list[float]]:
        measured = [cell for cell in ranked if all(name in results for name in cell.networks)]
        seeds = [cell.least_errors(results) for cell in measured]
        return seeds, [FAILED if cell.published == FAIL else cell.published for cell in measured]

    def interval(results: Results) -> tuple[float, float]:
        return bootstrap(*columns(results))

    def correlation(results: Results) -> list[float]:
        seeds, published = columns(results)
        return [spearman([statistics.median(values) for values in seeds], published)]

    return Cell(
        "rank-correlation",
        "measured errors stand in the published order",
        FIGURE,
        networks,
        Ordering("the interval over seeds lies above 0", networks, lambda results: interval(results)[0] > 0, ERROR),
        values=correlation,
        quantity="Spearman's rank correlation of medians with published errors; interval: 95 %, bootstrap over seeds",
        interval=interval,
        partial=True,
        least_seeds=2,
    )
