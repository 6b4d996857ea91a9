"""What the chapter's trained experiments have in common: data and budget by scale, orderings in words."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from verydeep.experiments.experiment import Measurement, Verdict
from verydeep.report.section import FAILS, HOLDS

DIGITS = (
    "scikit-learn's 8x8 digits, 1,438 for training, 359 for testing, batches of 64, one-cycle SGD; "
    "small numbers stand for orderings, not for the sources' errors"
)


def base(scale: str, *, steps: int, **small: Any) -> dict[str, Any]:
    """Fields of RunConfig for a trial: digits and few steps at `small`; at `paper` CIFAR-10 by He et al.'s protocol.

    Args:    steps: of the small run
             small: further fields of the small run
    """
    if scale == "paper":
        return {"data": "cifar10", "protocol": "he2016_cifar"}
    return {"data": "digits", "steps": steps, "log_steps": max(1, steps // 20)} | small


def median_of(measurements: Sequence[Measurement], key: str) -> float:
    """Median of a number over seeds; infinite where a run diverged."""
    return statistics.median(float("inf") if m[key] is None else m[key] for m in measurements)


def ordering(
    holds: bool, measurements: Mapping[str, Sequence[Measurement]], key: str, *, quantity: str, of: str, detail: str
) -> Verdict:
    """A verdict on an ordering.

    Args:    measurements: by trial
             key: the number compared
             of: the trial whose numbers, one a seed, stand for the claim
    """
    values = [m[key] for m in measurements[of]]
    numbers = [value for value in values if value is not None]
    interval = (min(numbers), max(numbers)) if numbers else None
    return Verdict(HOLDS if holds else FAILS, values, f"{quantity} of {of}", detail, interval)


def listed(measurements: Mapping[str, Sequence[Measurement]], key: str, *, unit: str = "") -> str:
    """The medians of all trials in words: `plain20 3.1 %, plain110 12 %`."""
    return ", ".join(f"{name} {median_of(values, key):.3g}{unit}" for name, values in measurements.items())
