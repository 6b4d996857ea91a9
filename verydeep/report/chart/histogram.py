"""How draws are spread: a histogram for each series, one above the other, on one axis."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from verydeep.report.chart.axis import ROOM, axis
from verydeep.report.chart.figure import Chart, Row, altair_chart, drawable, layers_of, tooltip
from verydeep.report.number import is_number, value_text
from verydeep.report.theme import GRID, INK, MUTED, SERIES

RIDGE = 92  # pixels a series: its bars, and two lines of text above
BARS = 0.58  # share of them that the highest bar takes


def histogram_chart(
    draws: Mapping[str, Sequence[float]],
    *,
    name: str,
    title: str,
    x_title: str,
    caption: str = "",
    published: Mapping[str, float] | None = None,
    log_x: bool = False,
    bins: int = 25,
    central: float = 0.99,
) -> Chart:
    """The draws of each series as bars, with the published value and the median as rules.

    Args:    draws: series -> its draws
             bins: a series
             central: the share of draws whose bars are full; the tails beside them are pale
    """
    rows = [{"series": series, "x": draw} for series, values in draws.items() for draw in values]
    kept, missing = drawable(rows, {"x": log_x})
    stars = {key: value for key, value in (published or {}).items() if drawable([{"x": value}], {"x": log_x})[0]}
    ends = bin_edges([row["x"] for row in kept] + list(stars.values()), 1, log=log_x, margin=0.03)
    bars: list[Row] = []
    rules: list[Row] = []
    for index, series in enumerate(draws):
        own = sorted(row["x"] for row in kept if row["series"] == series)
        floor = len(draws) - 1.0 - index
        bars += _bars(own, bin_edges(own, bins, log=log_x), series=series, floor=floor, central=central)
        rules += _rules(own, stars.get(series), series=series, floor=floor, central=central)
    key = f"Dashed line: published. Solid line: median. Full bars: the central {value_text(100 * central)} % of draws."
    scale = axis(ends, title=x_title, log=log_x)
    scale["scale"] = alt.Scale(type="log" if log_x else "linear", domain=ends, nice=False)
    drawing = layers_of(*_layers(bars, rules, scale, x_title, len(draws)), height=RIDGE * len(draws))
    return altair_chart(drawing, name=name, title=title, caption=[caption, key, missing])


def bin_edges(values: Sequence[float], bins: int, *, log: bool, margin: float = 0.0) -> list[float]:
    """Edges of equal width, on the axis as it is drawn, around all values.

    Args:    margin: what is left free on each side, relative to the range

    >>> bin_edges([0.0, 3.0], 3, log=False), bin_edges([1.0, 1e3], 3, log=True)
    ([0.0, 1.0, 2.0, 3.0], [1.0, 10.0, 100.0, 1000.0])
    """
    places = [math.log10(value) if log else value for value in values] or [0.0, 1.0]
    low, high = min(places), max(places)
    if low == high:
        low, high = low - 0.5, high + 0.5
    low, high = low - margin * (high - low), high + margin * (high - low)
    edges = [low + (high - low) * index / bins for index in range(bins + 1)]
    return [10**edge for edge in edges] if log else edges


def _bars(values: list[float], edges: list[float], *, series: str, floor: float, central: float) -> list[Row]:
    counts = [0] * (len(edges) - 1)
    for value in values:
        after = sum(edge <= value for edge in edges[1:-1])
        counts[after] += 1
    low, high = quantiles(values, central)
    most = max(counts, default=0) or 1
    return [
        {"series": series, "low": start, "high": end, "n": count, "bottom": floor, "top": floor + BARS * count / most}
        | {"shade": 0.85 if end >= low and start <= high else 0.35}
        for start, end, count in zip(edges, edges[1:], counts, strict=False)
        if count
    ]


def quantiles(values: Sequence[float], central: float) -> tuple[float, float]:
    """The interval that leaves half of the rest on each side; values are sorted.

    >>> quantiles([float(value) for value in range(101)], 0.9)
    (5.0, 95.0)
    """
    if not values:
        return math.nan, math.nan
    tail = (1 - central) / 2

    def at(share: float) -> float:
        place = share * (len(values) - 1)
        below = math.floor(place + 1e-9)
        above = min(below + 1, len(values) - 1)
        return values[below] + (values[above] - values[below]) * max(0.0, place - below)

    return at(tail), at(1 - tail)


def _rules(values: list[float], star: float | None, *, series: str, floor: float, central: float) -> list[Row]:
    """The rules of a series and the words above it; the words have a place even if nothing was drawn."""
    low, high = quantiles(values, central)
    facts = [f"published {value_text(star)}"] if is_number(star) else []
    if values:
        median = statistics.median(values)
        facts.append(f"median {value_text(median)}")
    short = " · ".join(facts) or "no draws"
    long = f"{short} · {value_text(low)} to {value_text(high)}" if values else short
    common = {"series": series, "bottom": floor, "top": floor + BARS + 0.04}
    rules = [{"which": "words", "heading": series, "short": short, "long": long, **common}]
    rules += [{"which": "median", "x": median, **common}] if values else []
    return rules + ([{"which": "published", "x": star, **common}] if is_number(star) else [])


def _layers(bars: list[Row], rules: list[Row], scale: dict[str, Any], x_title: str, count: int) -> list[Any]:
    height = alt.Scale(domain=[0, count], nice=False)
    bottom = alt.Y("bottom:Q", scale=height, axis=None)
    bar = alt.Chart(alt.InlineData(values=bars)).mark_rect(color=SERIES[0], stroke=None)
    lines = alt.Chart(alt.InlineData(values=[{"bottom": floor} for floor in range(count)]))
    floors = lines.mark_rule(color=GRID).encode(x=alt.value(0), x2=alt.value("width"), y=bottom)
    layers = [
        floors,
        bar.encode(
            x=alt.X("low:Q", **scale),
            x2="high:Q",
            y=bottom,
            y2="top:Q",
            opacity=alt.Opacity("shade:Q", scale=None),
            tooltip=tooltip(series="series", low="from", high="to", n="draws"),
        ),
    ]
    for which, dash, colour, width in (("median", [1, 0], INK, 2.2), ("published", [5, 3], SERIES[1], 2.6)):
        some = [row for row in rules if row["which"] == which]
        rule = alt.Chart(alt.InlineData(values=some)).mark_rule(color=colour, strokeDash=dash, strokeWidth=width)
        said = tooltip(series="series", which="which", x=x_title)
        layers.append(rule.encode(x=alt.X("x:Q", **scale), y=bottom, y2="top:Q", tooltip=said))
    words = alt.Chart(alt.InlineData(values=[row for row in rules if row["which"] == "words"]))
    words = words.transform_calculate(facts=f"{ROOM} < 460 ? datum.short : datum.long")
    place = {"x": alt.value(0), "y": alt.Y("top:Q", scale=height, axis=None)}
    heading = words.mark_text(align="left", baseline="bottom", dy=-17, color=INK, fontSize=13, fontWeight="bold")
    facts = words.mark_text(align="left", baseline="bottom", dy=-3, color=MUTED, fontSize=12)
    return [*layers, heading.encode(**place, text="heading:N"), facts.encode(**place, text="facts:N")]
