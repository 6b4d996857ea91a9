"""Axes and series of the charts: where ticks lie and what they say, how series are told apart."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from verydeep.report.number import SUPERSCRIPTS
from verydeep.report.theme import DASHES, SERIES, SHAPES

# Pixels of the figure's container, as a Vega expression; without a page, the width of the plot. The plot's width would
# not do in a page: it is known only after what depends on it has taken its own room.
ROOM = "(isNumber(containerSize()[0]) ? containerSize()[0] : width)"


def axis(values: Sequence[float], *, title: str, log: bool, **options: Any) -> dict[str, Any]:
    """Title, scale and axis of a numeric channel; with powers of ten where it is logarithmic."""
    if not log:
        return {"title": title, "axis": alt.Axis(tickCount=6, **options)}
    ticks = decades(values)
    chosen = {"values": ticks} if ticks else {"tickCount": 6}
    options |= {"labelExpr": power_label(every=bool(ticks))} | chosen
    return {"title": title, "scale": alt.Scale(type="log", nice=False), "axis": alt.Axis(**options)}


def decades(values: Sequence[float]) -> list[float]:
    """Powers of ten within the values, at most eight, evenly spaced; none where fewer than two lie there.

    >>> decades([0.03, 200.0]), decades([2.0, 8e26]), decades([1, 5])
    ([0.1, 1.0, 10.0, 100.0], [10000.0, 100000000.0, 1000000000000.0, 1e+16, 1e+20, 1e+24], [])
    """
    if not values:
        return []
    low, high = math.ceil(math.log10(min(values)) - 1e-9), math.floor(math.log10(max(values)) + 1e-9)
    step = max(1, math.ceil((high - low + 1) / 8))
    powers = [float(f"1e{power}") for power in range(low, high + 1) if power % step == 0]
    return powers if len(powers) > 1 else []


def power_label(*, every: bool) -> str:
    """A Vega expression: a tick of a logarithmic axis, plain from 0.001 to 1,000 and a power of ten beyond.

    Args:    every: whether ticks that Vega would leave blank have their label too
    """
    digits = "[" + ",".join(f"'{digit}'" for digit in "0123456789".translate(SUPERSCRIPTS)) + "]"
    power = "round(log(datum.value) / LN10)"
    tens = f"(abs({power}) > 9 ? {digits}[floor(abs({power}) / 10)] : '')"
    text = f"'10' + ({power} < 0 ? '⁻' : '') + {tens} + {digits}[abs({power}) % 10]"
    is_power = f"abs(datum.value / pow(10, {power}) - 1) < 1e-6"
    beyond = f"{is_power} && (datum.value > 1001 || datum.value < 0.00099)"
    blank = "" if every else "datum.label === '' ? '' : "
    return f"{blank}{beyond} ? {text} : format(datum.value, ',.4~g')"


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order in which they come.

    >>> distinct(["b", "a", "b"])
    ['b', 'a']
    """
    return list(dict.fromkeys(values))


def told_apart(names: Sequence[str]) -> dict[str, Any]:
    """Colour, dash and shape of each series; two differ in all three, up to as many series as there are colours."""
    legend = alt.Legend(
        title=None,
        columns=legend_columns(names),
        symbolType="stroke",  # a piece of the line, long enough to show its dash
        symbolSize=900,
        symbolOpacity=1,
    )
    shown = legend if len(names) > 1 else None

    def scale(kinds: Sequence[Any], shift: int) -> alt.Scale:
        # Beyond as many series as there are colours, dashes and shapes move on: the eighth is no second first.
        chosen = [kinds[(index + shift * (index // len(kinds))) % len(kinds)] for index in range(len(names))]
        return alt.Scale(domain=list(names), range=chosen)

    shapes = scale(SHAPES, 1)
    shapes.domain = [*names, ""]  # were it the domain of the lines, Vega-Lite would join its legend to theirs
    return {
        "color": alt.Color("series:N", scale=scale(SERIES, 0), legend=shown),
        "strokeDash": alt.StrokeDash("series:N", scale=scale(DASHES, 1), legend=shown),
        "shape": alt.Shape("series:N", scale=shapes, legend=None),
    }


def legend_columns(names: Sequence[str]) -> Any:
    """As many columns as fit the width that the figure has, by the length of the longest name."""
    label = 60 + 6.6 * max((len(name) for name in names), default=0)
    return alt.ExprRef(f"max(1, min({len(names)}, floor({ROOM} / {label:.0f})))")


def bands(names: Sequence[str], *, grid: bool = False) -> alt.Y:
    """One band a category, from the top, in the order given."""
    plain = alt.Axis(grid=grid, domain=False, ticks=False, labelPadding=8)
    return alt.Y("category:N", sort=None, scale=alt.Scale(domain=list(names)), title=None, axis=plain)
