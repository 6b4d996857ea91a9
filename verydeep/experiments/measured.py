"""Numbers of several seeds: their median, and medians of several trials in words."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verydeep.experiments.experiment import Measurement, Results

Number = str | Callable[[Measurement], float | None]  # of a measurement: its key, or a function of it


def number_of(measurement: Measurement, number: Number) -> float | None:
    """None where the run diverged."""
    return measurement[number] if isinstance(number, str) else number(measurement)


def median_of(measurements: Sequence[Measurement], number: Number) -> float:
    """Median of a number over seeds; infinite where a run diverged."""
    numbers = [number_of(measurement, number) for measurement in measurements]
    return statistics.median(float("inf") if value is None else value for value in numbers)


def values_of(number: Number, name: str, results: Results) -> list[Any]:
    """A quantity of one trial, a value a seed."""
    return [number_of(measurement, number) for measurement in results[name]]


def differences(key: str, name: str, than: str, results: Results) -> list[float]:
    """How much larger a number of one trial is than another's, a value a seed."""
    pairs = zip(values_of(key, name, results), values_of(key, than, results), strict=True)
    return [value - other for value, other in pairs]


def median_difference(key: str, name: str, than: str, results: Results) -> float:
    """The difference of the medians over seeds."""
    return median_of(results[name], key) - median_of(results[than], key)


def listed(measurements: Mapping[str, Sequence[Measurement]], number: Number, *, unit: str = "") -> str:
    """The medians of all trials in words, with the range over seeds: `plain20 3.1 % (2.8 to 3.3), plain110 12 %`."""
    return ", ".join(
        f"{name} {median_of(values, number):.3g}{unit}{_range(values, number)}" for name, values in measurements.items()
    )


def _range(measurements: Sequence[Measurement], number: Number) -> str:
    """The least and largest of several numbers, in brackets."""
    values = [number_of(measurement, number) for measurement in measurements]
    numbers = [value for value in values if value is not None]
    diverged = len(measurements) - len(numbers)
    if len(measurements) == 1 or not numbers:
        return ""
    return f" ({min(numbers):.3g} to {max(numbers):.3g}{f', {diverged} diverged' if diverged else ''})"
