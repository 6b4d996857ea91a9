"""What an experiment is: claims of a source, the trials that measure them, and how the measurements are judged.

`grid` runs trials, the source files (`chapter`, ...) declare experiments, the report shows the verdicts.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verydeep.report.number import is_number

Measurement = dict[str, Any]  # JSON values; what one trial returns
USUAL_DATA = {"small": "digits", "paper": "cifar10"}  # by scale


@dataclass(frozen=True)
class Setting:
    """Where trials run.

    Args:    scale: small, for a small machine in minutes; or paper, the sources' own sizes
             data: of the trained experiments, as for `train`; default: digits, at the paper's scale cifar10
             image_size: to which its images are resized; None: their own
             max_images: of each of its splits at most
    """

    scale: str = "small"
    data: str = ""
    image_size: int | None = None
    max_images: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.data or USUAL_DATA[self.scale])

    def __str__(self) -> str:
        """Its directory among the trials: `small`, `paper`, `small-cifar10-16`."""
        if self == Setting(self.scale):
            return self.scale
        size = "" if self.image_size is None else f"-{self.image_size}"
        size += "" if self.max_images is None else f"-{self.max_images}-images"
        return f"{self.scale}-{Path(self.data.partition(':')[2] or self.data).name}{size}"

    def describe(self) -> str:
        """The data and protocol of what is trained, for a caption."""
        size = "" if self.image_size is None else f" at {self.image_size}x{self.image_size}"
        size += "" if self.max_images is None else f", {self.max_images} images of each split at most"
        if self.scale == "paper":
            return f"{self.data}{size}, protocol of He et al. 2016"
        digits = "scikit-learn's 8x8 digits, 1,438 for training, 359 for testing"
        data = digits if self.data == "digits" else self.data
        return f"{data}{size}, batches of 64, one-cycle SGD; its numbers stand for orderings, not for published errors"


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

    def is_possible(self) -> bool:
        """Whether it can be carried out here."""
        return True

    def carry_out(self, seed: int, directory: Path) -> Measurement:
        """Measure; nothing but the measurement is kept."""
        return self.measure(seed)


@dataclass(frozen=True)
class Verdict:
    """One claim judged.

    Args:    verdict: holds, fails or not run
             measured: the quantity, a value a seed (or a draw)
             quantity: what was measured, with its unit, in words
             detail: by how much, in a sentence with numbers
             interval: where the measurements lie: the range over seeds, or the central 99 % of draws
             beside: what else was measured of it, by name, a value a seed
    """

    verdict: str
    measured: Sequence[Any]
    quantity: str
    detail: str = ""
    interval: tuple[float, float] | None = None
    beside: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """One claim of a source: an entry of a table, a number or a figure.

    Args:    id: its name in results
             kind: exact, stochastic or trained
             section: of the source
             what: in words
             published: the printed value; `identity` or `figure` where it is no number, `fail` where the source says so
             digit: the unit of the last digit printed, of an exact number
             unit: of the published value
    """

    id: str
    kind: str
    section: str
    what: str
    published: Any
    digit: Any = None
    unit: str = ""


Results = Mapping[str, Sequence[Measurement]]  # trial name -> a measurement a seed


@dataclass(frozen=True)
class Experiment:
    """A table, figure or worked example of a source.

    Args:    name: as in the source, `fig11.1`
             kind: exact, stochastic or trained
             title: one line for people
             trials: what is to be run in a setting
             judge: from all trials' measurements in a setting to a verdict for each claim id
             charts: from all trials' measurements to figures, see `report.chart`
             text: what the source says, for the page
             settings: what was chosen where the source is silent, for the caption; the data, in trained ones, are the
                 setting's
             claims: the ids of what it judges
    """

    name: str
    kind: str
    title: str
    trials: Callable[[Setting], Sequence[Any]]
    judge: Callable[[Results, Setting], Mapping[str, Verdict]]
    charts: Callable[[Results], Sequence[Any]] = lambda results: ()
    text: str = ""
    settings: str = ""
    claims: tuple[str, ...] = ()

    @property
    def seeded(self) -> bool:
        """Whether further seeds tell more."""
        return self.kind == "trained"


def summary(values: Sequence[Any]) -> dict[str, Any]:
    """median, mean, std and n of numbers, or of rows of numbers by column; only n of anything else.

    >>> summary([1.0, 2.0, 6.0])
    {'median': 2.0, 'mean': 3.0, 'std': 2.6457513110645907, 'n': 3}
    >>> summary([[20.0, 5.0], [22.0, 6.0]])["median"]
    [21.0, 5.5]
    """
    n = len(values)
    if n and all(map(is_number, values)):
        std = statistics.stdev(values) if n > 1 else None
        return {"median": statistics.median(values), "mean": statistics.fmean(values), "std": std, "n": n}
    if n and all(is_row(value) and len(value) == len(values[0]) for value in values):
        columns = [summary(column) for column in zip(*values, strict=True)]
        return {name: [column[name] for column in columns] for name in ("median", "mean", "std")} | {"n": n}
    return {"median": None, "mean": None, "std": None, "n": n}


def is_row(value: Any) -> bool:
    """Whether a value is a list of numbers.

    >>> is_row([20.7, 5.3]), is_row([]), is_row([[1]])
    (True, False, False)
    """
    return isinstance(value, list) and bool(value) and all(map(is_number, value))
