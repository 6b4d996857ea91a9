"""One dot a seed, by category."""

import statistics
from collections.abc import Mapping
from typing import Any

import altair as alt

from verydeep.report.chart.axis import axis, bands, distinct
from verydeep.report.chart.figure import Chart, Row, Rows, altair_chart, drawable, layers_of, own_names, tooltip
from verydeep.report.theme import INK, SERIES

BAND = 40  # pixels a category


def dot_chart(
    rows: Rows,
    *,
    name: str,
    title: str,
    category: str,
    value: str,
    caption: str = "",
    x_title: str = "",
    published: Mapping[str, float] | None = None,
    log_x: bool = False,
) -> Chart:
    """Each seed's value, the median of each category as a bar, the published value as a hollow diamond.

    Args:    rows: one a seed and category
             published: category -> the source's value, for those that have one
    """
    data, missing = drawable(own_names(rows, {"category": category, "value": value}, which="seed"), {"value": log_x})
    given = [{"category": str(key), "value": number, "which": "published"} for key, number in (published or {}).items()]
    stars, _ = drawable(given, {"value": log_x})
    categories = distinct(row["category"] for row in [*own_names(rows, {"category": category}), *stars])
    scale = axis([row["value"] for row in [*data, *stars]], title=x_title or value, log=log_x)
    if not log_x:
        scale["scale"] = alt.Scale(zero=False, padding=16)
    places: dict[str, Any] = {
        "x": alt.X("value:Q", **scale),
        "y": bands(categories, grid=True),
        "tooltip": tooltip(category=category, which="which", value=x_title or value, n="seeds"),
    }

    def layer(values: list[Row]) -> Any:
        return alt.Chart(alt.InlineData(values=values)).encode(**places)

    layers = [
        layer(_medians(data)).mark_tick(color=INK, thickness=2.5, size=24),
        layer(data).mark_point(filled=True, size=75, opacity=0.75, color=SERIES[0]),
    ]
    if stars:
        hollow = {
            "shape": "diamond",
            "size": 190,
            "filled": False,
            "opacity": 1,
            "color": SERIES[1],
            "strokeWidth": 2.2,
        }
        layers.append(layer(stars).mark_point(**hollow))
    key = "Dots: one a seed. Bar: their median." + (" Hollow diamonds: published." if stars else "")
    drawing = layers_of(*layers, height=BAND * len(categories) + 8)
    return altair_chart(drawing, name=name, title=title, caption=[caption, key, missing])


def _medians(data: list[Row]) -> list[Row]:
    seeds: dict[Any, list[float]] = {}
    for row in data:
        seeds.setdefault(row["category"], []).append(row["value"])
    return [
        {"category": str(key), "value": statistics.median(values), "n": len(values), "which": "median"}
        for key, values in seeds.items()
    ]
