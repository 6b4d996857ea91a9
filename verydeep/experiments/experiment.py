"""What an experiment is: claims of a source, the trials that measure them, and how the measurements are judged.

`grid` runs trials, the source files (`chapter`, ...) declare experiments, the report shows the verdicts.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Measurement = dict[str, Any]  # JSON values; what one trial returns


@dataclass(frozen=True)
class Trial:
    """One piece of work, independent of the others, kept once it is done.

    Args:    name: unique within its experiment
             measure: from a seed to JSON values
             cost: expected seconds on two cores, relative to the other trials; for the time left
    """

    name: str
    measure: Callable[[int], Measurement]
    cost: float = 1.0


@dataclass(frozen=True)
class Verdict:
    """One claim judged.

    Args:    verdict: holds, fails or not run
             measured: the quantity, a value a seed (or a draw)
             quantity: what was measured, with its unit, in words
             detail: by how much, in a sentence with numbers
             interval: where the measurements lie: the range over seeds, or the central 99 % of draws
    """

    verdict: str
    measured: Sequence[Any]
    quantity: str
    detail: str = ""
    interval: tuple[float, float] | None = None


Results = Mapping[str, Sequence[Measurement]]  # trial name -> a measurement a seed


@dataclass(frozen=True)
class Experiment:
    """A table, figure or worked example of a source.

    Args:    name: as in the source, `fig11.1`
             kind: exact, stochastic or trained
             title: one line for people
             trials: what is to be run at a scale, `small` or `paper`
             judge: from all trials' measurements to a verdict for each claim id
             seeds: False if one seed is all there is (exact and stochastic experiments)
             charts: from all trials' measurements to figures, see `report.chart`
             settings: what was chosen where the source is silent, for the caption
    """

    name: str
    kind: str
    title: str
    trials: Callable[[str], Sequence[Trial]]
    judge: Callable[[Results], Mapping[str, Verdict]]
    charts: Callable[[Results], Sequence[Any]] = lambda results: ()
    settings: str = ""
    claims: tuple[str, ...] = field(default=())

    @property
    def seeded(self) -> bool:
        """Whether further seeds tell more."""
        return self.kind == "trained"


def summary(values: Sequence[Any]) -> dict[str, Any]:
    """median, mean, std and n of numbers; only n of anything else.

    >>> summary([1.0, 2.0, 6.0])
    {'median': 2.0, 'mean': 3.0, 'std': 2.6457513110645907, 'n': 3}
    """
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(numbers) < len(values) or not numbers:
        return {"median": None, "mean": None, "std": None, "n": len(values)}
    return {
        "median": statistics.median(numbers),
        "mean": statistics.fmean(numbers),
        "std": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "n": len(numbers),
    }
