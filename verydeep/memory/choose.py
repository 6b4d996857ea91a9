"""Which units of a step are kept whole and which are recomputed together, by the bytes and the work of a trace.

The backward pass comes to the units from the last to the first and lets go what it is through with. So where it is at a
unit, only what the units up to it keep is held. All here are functions of a `Trace`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from verydeep.memory.trace import Trace, UnitTrace


@dataclass
class Part:
    """Units from `first` up to `end`, each kept whole or all recomputed from what goes into the first.

    Args:    kept_bytes: that they add to what is kept
             recomputed_bytes: that their recomputation adds to that
    """

    first: int
    end: int
    recomputed: bool
    kept_bytes: int
    recomputed_bytes: int = 0


@dataclass
class Choice:
    """All units in parts.

    Args:    kept_bytes: when the backward pass begins
             peak_bytes: the most that is held, states not counted
             rework: multiply-adds of all recomputations
    """

    parts: list[Part] = field(default_factory=list)
    kept_bytes: int = 0
    peak_bytes: int = 0
    rework: int = 0


def choose(step: Trace, limit: float) -> Choice | None:
    """The choice with the least work whose peak is within `limit`; None if there is none.

    Two orders in which units are kept whole are tried: by work a byte, and the last first, which costs nothing while
    earlier ones are recomputed.
    """
    least = _divide(step, set(), limit) or smallest(step)
    if least.peak_bytes > limit:
        return None
    units = range(len(step.units))
    by_worth = sorted(units, key=lambda i: (-_worth(step.units[i]), -i))
    grouped = [list(group) for _, group in groupby(by_worth, lambda i: _worth(step.units[i]))]
    choices = [least] + [_keep_most(step, order, limit) for order in (grouped, [list(reversed(units))])]
    return min((choice for choice in choices if choice is not None), key=lambda choice: choice.rework)


def smallest(step: Trace) -> Choice:
    """The choice with the smallest peak, to a thousandth."""
    best = _divide(step, set(), inf)
    assert best is not None
    too_small = 0
    while best.peak_bytes - too_small > best.peak_bytes // 1000 + 1:
        middle = (best.peak_bytes + too_small) // 2
        better = _divide(step, set(), middle)
        if better is None:
            too_small = middle
        else:
            best = better
    return best


def unplanned(step: Trace) -> Choice:
    """Everything kept whole."""
    choice = _divide(step, set(range(len(step.units))), inf)
    assert choice is not None
    return choice


def _worth(unit: UnitTrace) -> float:
    """Multiply-adds that are saved for a byte, when a unit is kept whole."""
    return unit.rework / max(1, unit.kept_bytes)


def _keep_most(step: Trace, groups: Sequence[Sequence[int]], limit: float) -> Choice | None:
    """Keep whole as many units as fit of the first group, then of the next, and so on."""
    whole: set[int] = set()
    best = None
    for group in groups:
        low, high = 0, len(group) + 1  # so many fit, so many do not
        while high - low > 1:
            middle = len(group) if high > len(group) else (low + high) // 2
            choice = _divide(step, whole | set(group[:middle]), limit)
            if choice is None:
                high = middle
            else:
                low, best = middle, choice
        whole |= set(group[:low])
    return best


def _divide(step: Trace, whole: set[int], limit: float) -> Choice | None:
    """The units outside of `whole` in recomputed segments, each as long as `limit` allows; None if nothing fits."""
    held: dict[int, int] = {}
    choice = Choice()
    first = 0
    while first < len(step.units):
        unit = step.units[first]
        choice.kept_bytes += _hold(held, step.around[first])
        peak = choice.kept_bytes + step.transient_around[first]
        if first in whole:
            added = _hold(held, unit.kept)
            part = Part(first, first + 1, recomputed=False, kept_bytes=added)
            peak = max(peak, choice.kept_bytes + added + max(unit.passing_bytes, unit.transient_bytes))
        else:
            added = _hold(held, unit.inputs)
            part, rise = _longest(step, first, whole, held, limit - choice.kept_bytes - added)
            part.kept_bytes = added
            peak = max(peak, choice.kept_bytes + added + rise)
            choice.rework += sum(other.work for other in step.units[first : part.end - 1])
            choice.rework += step.units[part.end - 1].rework
        choice.kept_bytes += added
        choice.peak_bytes = max(choice.peak_bytes, peak)
        if choice.peak_bytes > limit:
            return None
        _append(choice.parts, part, joined=first > 0 and unit.follows(step.units[first - 1]))
        first = part.end
    choice.kept_bytes += _hold(held, step.around[-1])
    choice.peak_bytes = max(choice.peak_bytes, choice.kept_bytes + step.transient_around[-1])
    return choice if choice.peak_bytes <= limit else None


def _longest(step: Trace, first: int, whole: set[int], held: dict[int, int], limit: float) -> tuple[Part, int]:
    """The longest segment from `first` whose recomputation stays within `limit`, of one unit at the least.

    Returns: the segment, and the most bytes that it holds when it is recomputed, besides what is held already
    """
    recomputed: dict[int, int] = {}
    size = rise = inner = 0
    end = first
    while end < len(step.units):
        unit = step.units[end]
        if end > first and (end in whole or not unit.follows(step.units[end - 1])):
            break
        added = sum(n for key, n in unit.kept.items() if key not in held and key not in recomputed)
        with_unit = max(inner, size + added + unit.transient_bytes)
        if end > first and with_unit > limit:
            break
        recomputed |= unit.kept
        size, rise = size + added, with_unit
        inner = max(with_unit, size + unit.passing_bytes + unit.output_bytes)  # where it is not the last
        end += 1
    return Part(first, end, recomputed=True, kept_bytes=0, recomputed_bytes=size), rise


def _hold(held: dict[int, int], storages: dict[int, int]) -> int:
    """Add storages to what is held; the bytes that this takes."""
    new = sum(size for key, size in storages.items() if key not in held)
    held |= storages
    return new


def _append(parts: list[Part], part: Part, *, joined: bool) -> None:
    """Add a part; units of one container that are kept whole one after the other are one part."""
    if joined and not part.recomputed and not parts[-1].recomputed:
        parts[-1].end = part.end
        parts[-1].kept_bytes += part.kept_bytes
    else:
        parts.append(part)
