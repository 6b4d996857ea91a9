"""Lines over a number: training curves, variance against depth, accuracy against a setting."""

from typing import Any

import altair as alt

from verydeep.report.chart.axis import axis, distinct, told_apart
from verydeep.report.chart.figure import Chart, Row, Rows, altair_chart, drawable, layers_of, own_names, tooltip

MOST_MARKERS = 40  # points a line: beyond, markers would hide the line


def line_chart(
    rows: Rows,
    *,
    name: str,
    title: str,
    x: str,
    y: str,
    series: str | None = None,
    caption: str = "",
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    band: tuple[str, str] | None = None,
    published: Rows = (),
    hover: str | None = None,
) -> Chart:
    """Lines of y over x, one a series, in the order in which the series come.

    Args:    x, y, series: columns
             band: the columns of a lower and an upper bound, shaded
             published: rows of the source's values, drawn as hollow diamonds
             hover: a column of words that a point says of itself
    """
    fields = {"x": x, "y": y, "series": series} | ({"category": hover} if hover else {})
    measured = {**fields, "low": band[0], "high": band[1]} if band else fields
    logs = {"x": log_x, "y": log_y}
    data, missing = drawable(
        own_names(rows, measured, which="measured"), logs | ({"low": log_y, "high": log_y} if band else {})
    )
    stars, _ = drawable(own_names(published, fields, which="published"), logs)
    drawn = [*data, *stars]
    names = distinct(row["series"] for row in drawn)
    heights = [row[key] for row in drawn for key in ("y", "low", "high") if key in row]
    places = {
        "x": alt.X("x:Q", **axis([row["x"] for row in drawn], title=x_title or x, log=log_x)),
        "y": alt.Y("y:Q", **axis(heights, title=y_title or y, log=log_y)),
        "tooltip": tooltip(category=hover or "", series=series or "", which="which", x=x_title or x, y=y_title or y),
    }
    sentences = [caption, "Hollow diamonds: published." if stars else "", missing]
    layers = _layers(data, names, places, shaded=bool(band)) + _diamonds(stars, names, places)
    return altair_chart(layers_of(*layers), name=name, title=title, caption=sentences)


def _layers(data: list[Row], names: list[str], places: dict[str, Any], *, shaded: bool) -> list[Any]:
    looks = told_apart(names)
    base = alt.Chart(alt.InlineData(values=data))
    line = base.mark_line(strokeWidth=2).encode(places["x"], places["y"], looks["color"], looks["strokeDash"])
    if len(data) <= MOST_MARKERS * max(1, len(names)):
        point = base.mark_point(filled=True, size=55, opacity=1).encode(
            **places, color=looks["color"], shape=looks["shape"]
        )
    else:
        # Seen by the pointer alone.
        point = base.mark_point(filled=True, size=120, opacity=0).encode(**places, color=looks["color"])
    if not shaded:
        return [line, point]
    shade = base.mark_area(opacity=0.16).encode(places["x"], y=alt.Y("low:Q"), y2="high:Q", color=looks["color"])
    return [shade, line, point]


def _diamonds(stars: list[Row], names: list[str], places: dict[str, Any]) -> list[Any]:
    if not stars:
        return []
    base = alt.Chart(alt.InlineData(values=stars))
    hollow = base.mark_point(shape="diamond", size=170, filled=False, opacity=1, strokeWidth=2.2)
    return [hollow.encode(**places, color=told_apart(names)["color"])]
