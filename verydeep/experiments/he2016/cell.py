"""An entry of a table or a statement of the paper: what was published, which networks show it, and how it is judged."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from verydeep.experiments.experiment import Results, Setting, Verdict
from verydeep.experiments.he2016.network import NETWORKS
from verydeep.experiments.measured import Number, listed, median_of, number_of, values_of
from verydeep.report.section import FAILS, HOLDS, NOT_RUN

FAIL = "fail"  # what the paper prints for a test error above 20 %
FAIL_PERCENT = 20.0
LEAST_NETWORKS = 4  # of an entry that is judged by a part of its networks
FIGURE = "figure"  # published as a curve or in words, not as a number
ERROR = "test_error_percent"


@dataclass(frozen=True)
class Ordering:
    """What measurements must show where their numbers are not the published ones.

    Args:    text: in words
             networks: what it compares; it is not judged before all are measured
             holds: of the measurements of these networks, a list over seeds each
             number: what is compared; where a function of a measurement gives None, nothing could be read of the run,
                 and nothing is judged
             said: from the measurements to what was compared, in words; default: medians of the number
    """

    text: str
    networks: tuple[str, ...]
    holds: Callable[[Results], bool]
    number: Number = ERROR
    said: Callable[[Results], str] | None = None


@dataclass(frozen=True)
class Cell:
    """One entry.

    Args:    id: as among the published values
             what: in words
             published: error_percent, or its median, mean and std; [top-1, top-5] error_percent; FAIL; FIGURE
             networks: of NETWORKS; of several every one fails, and the best of each seed is measured; none: a method
                 of others
             ordering: what must show; at the paper's scale, of a number, beside its agreement
             values: from the results to the quantity, a value a seed; default: the least test error of the networks
             quantity: what is measured
             tolerance: at the paper's scale, points between the median and the published error
             interval: from the results to where the quantity lies; default: the range over seeds
             partial: judged with those of its networks that are measured, at the small scale in its usual steps
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
    def number(self) -> Any:
        """What was published, without its mean and std."""
        return self.published["median"] if isinstance(self.published, dict) else self.published

    @property
    def needed(self) -> tuple[str, ...]:
        """All networks that must be measured for it."""
        return tuple(dict.fromkeys((*self.networks, *(self.ordering.networks if self.ordering else ()))))

    def judge(self, results: Results, setting: Setting) -> Verdict:
        """By its ordering; at the paper's scale, what has a published number by that too."""
        if not self.networks:
            return self._not_run("a method of others")
        results = {name: results[name] for name in self.needed if name in results}
        missing = [name for name in self.needed if name not in results]
        if missing and not (self.partial and results):
            wanted = sorted({NETWORKS[name].data for name in missing})
            return self._not_run(f"needs {', '.join(DATA_IN_WORDS[data] for data in wanted)}")
        if self.partial:
            results = _trained_alike(results, setting)
            if len(results) < LEAST_NETWORKS:
                return self._not_run(f"needs {LEAST_NETWORKS} networks trained in as many steps")
        values = list(self.values(results) if self.values else self.least_errors(results))
        by_number = setting.scale == "paper" and self.published != FIGURE
        quantity = self.quantity if by_number or self.published == FIGURE else f"{self.quantity} at the small scale"
        judged = [self._agrees(results, values)] if by_number else []
        if min(len(measurements) for measurements in results.values()) < self.least_seeds:
            return self._not_run(f"needs {self.least_seeds} seeds, for an interval", values)
        if self.ordering is not None and not (by_number and self.published == FAIL):
            unread = self._unread(self.ordering, results)
            if unread:
                return self._not_run(f"{', '.join(unread)} diverged, so that nothing could be read", values)
            judged.append(self._shows(self.ordering, results))
        if not judged:
            return self._not_run("nothing to compare it with", values)
        recalibrated = self._recalibrated(results)
        details = [detail for _, detail in judged]
        if recalibrated:
            median = statistics.median(recalibrated)
            details.append(f"with batch-norm statistics recomputed on training images {median:.3g} %")
        return Verdict(
            HOLDS if all(holds for holds, _ in judged) else FAILS,
            values,
            quantity,
            "; ".join(details),
            self.interval(results) if self.interval else _range(values),
            {f"recalibrated_{ERROR}": recalibrated} if recalibrated else {},
        )

    def _not_run(self, why: str, values: Sequence[Any] = ()) -> Verdict:
        return Verdict(NOT_RUN, list(values), self.quantity, why)

    def _shows(self, ordering: Ordering, results: Results) -> tuple[bool, str]:
        """Whether the ordering shows, and what was compared, in words."""
        number = ordering.number
        unit = " %" if isinstance(number, str) and "percent" in number else ""
        compared = {name: results[name] for name in ordering.networks if name in results}
        said = ordering.said(results) if ordering.said else listed(compared, number, unit=unit)
        return ordering.holds(results), f"{ordering.text}: {said}"

    @staticmethod
    def _unread(ordering: Ordering, results: Results) -> list[str]:
        """The networks of which what the ordering reads off could not be read."""
        if isinstance(ordering.number, str):
            return []
        return [
            name
            for name in ordering.networks
            if any(number_of(measurement, ordering.number) is None for measurement in results[name])
        ]

    def _recalibrated(self, results: Results) -> list[float]:
        """The least error with batch-norm statistics recomputed, a value a seed; none where that is not known."""
        key = f"recalibrated_{ERROR}"
        if self.values or not all(key in measurement for name in self.networks for measurement in results[name]):
            return []
        return [min(seed) for seed in zip(*(values_of(key, name, results) for name in self.networks), strict=True)]

    def least_errors(self, results: Results) -> list[float]:
        """The least test error of its networks, a value a seed."""
        return [min(seed) for seed in zip(*(values_of(ERROR, name, results) for name in self.networks), strict=True)]

    def _agrees(self, results: Results, values: Sequence[Any]) -> tuple[bool, str]:
        if self.published == FAIL:
            least = min(median_of(results[name], ERROR) for name in self.networks)
            return least > FAIL_PERCENT, f"the least median is {least:.2f} %, the paper's failures lie above 20 %"
        published = self.number if isinstance(self.published, list) else [self.number]
        columns = list(zip(*values, strict=True)) if isinstance(values[0], list) else [values]
        differences = [statistics.median(column) - number for column, number in zip(columns, published, strict=True)]
        detail = f"{', '.join(f'{difference:+.2f}' for difference in differences)} points; {self.tolerance} are allowed"
        return all(abs(difference) <= self.tolerance for difference in differences), detail


def _trained_alike(results: Results, setting: Setting) -> Results:
    """The networks trained in the usual number of steps of the small scale; at the paper's, all."""
    alike = [name for name in results if setting.scale == "paper" or "steps" not in NETWORKS[name].small]
    return {name: results[name] for name in alike}


def _range(values: Sequence[Any]) -> tuple[float, float] | None:
    """The least and largest of numbers."""
    numbers = [value for value in values if isinstance(value, (int, float))]
    return (min(numbers), max(numbers)) if len(numbers) == len(values) else None


DATA_IN_WORDS = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100, which is not here and could not be downloaded",
    "imagenet": "ImageNet: give --data folder:DIR",
}
