"""The orderings that the paper's tables show, as functions that make an `Ordering` of networks' names."""

import operator
from collections.abc import Callable, Sequence

from verydeep.experiments.experiment import Results
from verydeep.experiments.he2016.cell import ERROR, Ordering
from verydeep.experiments.measured import Number, median_of

CHANCE = 90.0  # error_percent with ten classes, for measurements that do not say it
BASELINE = "resnet110"


def best(name: str, others: Sequence[str]) -> Ordering:
    """The lowest error of all."""
    return Ordering(
        f"{name} lowest of all",
        (name, *others),
        lambda results: all(_error(results, name) < _error(results, other) for other in others),
    )


def worse(name: str, than: str, *, number: Number = ERROR) -> Ordering:
    """A higher error than another's."""
    return _beside(name, "above", than, operator.gt, number)


def better(name: str, than: str, *, number: Number = ERROR) -> Ordering:
    """A lower error than another's."""
    return _beside(name, "below", than, operator.lt, number)


def not_worse(name: str, than: str, *, number: Number = ERROR) -> Ordering:
    """No higher error than another's."""
    return _beside(name, "not above", than, operator.le, number)


def _beside(name: str, relation: str, than: str, holds: Callable[[float, float], bool], number: Number) -> Ordering:
    """The medians of two in a relation, in words and as a function."""
    return Ordering(
        f"{name} {relation} {than}",
        (name, than),
        lambda results: holds(median_of(results[name], number), median_of(results[than], number)),
        number,
    )


def fails(names: Sequence[str], beside: str = BASELINE) -> Ordering:
    """Each loses at least half of what the other learns: its error is nearer to chance than to the other's."""

    def holds(results: Results) -> bool:
        chance = results[beside][0].get("chance_error_percent", CHANCE)
        return all(_error(results, name) > (chance + _error(results, beside)) / 2 for name in names)

    return Ordering(f"nearer to chance than to {beside}", (beside, *names), holds)


def trains_but_worse(name: str, than: str, failing: str) -> Ordering:
    """Between one that trains well and one that fails."""
    return Ordering(
        f"above {than} and below {failing}",
        (than, name, failing),
        lambda results: _error(results, than) < _error(results, name) < _error(results, failing),
    )


def nearer(name: str, to: str, than: str) -> Ordering:
    """Nearer to one error than another is."""
    return Ordering(
        f"{name} nearer to {to} than {than} is",
        (to, name, than),
        lambda results: (
            abs(_error(results, name) - _error(results, to)) < abs(_error(results, than) - _error(results, to))
        ),
    )


def gains_more(pair: tuple[str, str], than: tuple[str, str]) -> Ordering:
    """The second of a pair is below the first, and by more than in another pair."""

    def holds(results: Results) -> bool:
        gain, other = (_error(results, a) - _error(results, b) for a, b in (pair, than))
        return gain > 0 and gain > other

    return Ordering(f"{pair[1]} below {pair[0]}, by more than {than[1]} is below {than[0]}", (*pair, *than), holds)


def _error(results: Results, name: str) -> float:
    return median_of(results[name], ERROR)
