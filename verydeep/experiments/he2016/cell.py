"""An entry of a table or a statement of the paper: what was published, which networks show it, and how it is judged."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verydeep.experiments.experiment import Results, Setting, Verdict
from verydeep.experiments.he2016.network import NETWORKS
from verydeep.experiments.measured import Number, listed, median_of, values_of
from verydeep.report.section import FAILS, HOLDS, NOT_RUN

FAIL = "fail"  # what the paper prints for a test error above 20 %
FAIL_PERCENT = 20.0
FIGURE = "figure"  # published as a curve or in words, not as a number
ERROR = "test_error_percent"


@dataclass(frozen=True)
class Ordering:
    """What measurements must show where their numbers are not the published ones.

    Args:    text: in words
             networks: what it compares; it is not judged before all are measured
             holds: of the measurements of these networks, a list over seeds each
             number: what is compared, for the detail
    """

    text: str
    networks: tuple[str, ...]
    holds: Callable[[Results], bool]
    number: Number = ERROR


@dataclass(frozen=True)
class Cell:
    """One entry.

    Args:    id: as among the published values
             what: in words
             published: error_percent; [top-1, top-5] error_percent; FAIL; FIGURE
             networks: of NETWORKS; of several every one fails, and the best of each seed is measured; none: a method
                 of others
             ordering: what the small scale must show, and at the paper's scale what is no number
             values: from the results to the quantity, a value a seed; default: the least test error of the networks
             quantity: what is measured
             tolerance: at the paper's scale, points between the median and the published error
             interval: from the results to where the quantity lies; default: the range over seeds
             partial: judged with those of its networks that are measured
             least_seeds: with fewer it is not judged
    """

    id: str
    what: str
    published: Any
    networks: tuple[str, ...] = ()
    ordering: Ordering | None = None
    values: Callable[[Results], Sequence[Any]] | None = None
    quantity: str = "test error_percent"
    tolerance: float = 0.5
    interval: Callable[[Results], tuple[float, float]] | None = None
    partial: bool = False
    least_seeds: int = 1

    @property
    def needed(self) -> tuple[str, ...]:
        """All networks that must be measured for it."""
        return tuple(dict.fromkeys((*self.networks, *(self.ordering.networks if self.ordering else ()))))

    def judge(self, results: Results, setting: Setting) -> Verdict:
        """Beside the published number at the paper's scale; by the ordering at the small one."""
        if not self.networks:
            return Verdict(NOT_RUN, [], self.quantity, "a method of others")
        missing = [name for name in self.needed if name not in results]
        if missing and not (self.partial and results):
            wanted = sorted({NETWORKS[name].data for name in missing})
            return Verdict(NOT_RUN, [], self.quantity, f"needs {', '.join(DATA_IN_WORDS[data] for data in wanted)}")
        values = list(self.values(results) if self.values else self.least_errors(results))
        interval = self.interval(results) if self.interval else _range(values)
        if setting.scale == "paper" and self.published != FIGURE:
            holds, detail = self._agrees(results, values)
            detail += self._recalibrated(results)
            return Verdict(HOLDS if holds else FAILS, values, self.quantity, detail, interval)
        if self.ordering is None:
            return Verdict(NOT_RUN, values, f"{self.quantity} at the small scale", "nothing to compare it with")
        seeds = min(len(measurements) for measurements in results.values())
        if seeds < self.least_seeds:
            return Verdict(NOT_RUN, values, self.quantity, f"needs {self.least_seeds} seeds, for an interval")
        holds = self.ordering.holds(results)
        compared = {name: results[name] for name in self.ordering.networks if name in results}
        number = self.ordering.number
        unit = " %" if isinstance(number, str) and "percent" in number else ""
        detail = f"{self.ordering.text}: {listed(compared, number, unit=unit)}{self._recalibrated(results)}"
        quantity = self.quantity if self.published == FIGURE else f"{self.quantity} at the small scale"
        return Verdict(HOLDS if holds else FAILS, values, quantity, detail, interval)

    def _recalibrated(self, results: Results) -> str:
        """The least error with batch-norm statistics recomputed, where that is known."""
        if self.values is not None:
            return ""
        key = f"recalibrated_{ERROR}"
        errors = [median_of(results[name], key) for name in self.networks if all(key in m for m in results[name])]
        return f"; with statistics recomputed on training images {min(errors):.3g} %" if errors else ""

    def least_errors(self, results: Results) -> list[float]:
        """The least test error of its networks, a value a seed."""
        return [min(seed) for seed in zip(*(values_of(ERROR, name, results) for name in self.networks), strict=True)]

    def _agrees(self, results: Results, values: Sequence[Any]) -> tuple[bool, str]:
        if self.published == FAIL:
            least = min(median_of(results[name], ERROR) for name in self.networks)
            return least > FAIL_PERCENT, f"the least median is {least:.2f} %, the paper's failures lie above 20 %"
        published = self.published if isinstance(self.published, list) else [self.published]
        columns = list(zip(*values, strict=True)) if isinstance(values[0], list) else [values]
        differences = [statistics.median(column) - number for column, number in zip(columns, published, strict=True)]
        detail = f"{', '.join(f'{difference:+.2f}' for difference in differences)} points; {self.tolerance} are allowed"
        return all(abs(difference) <= self.tolerance for difference in differences), detail


def _range(values: Sequence[Any]) -> tuple[float, float] | None:
    """The least and largest of numbers."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    return (min(numbers), max(numbers)) if len(numbers) == len(values) else None


DATA_IN_WORDS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100, which is not here and could not be downloaded",
    "imagenet": "ImageNet: give --data folder:DIR",
}
