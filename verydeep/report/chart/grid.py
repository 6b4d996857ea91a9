"""Cells in rows and columns: loss surfaces, which cells of a batch share statistics."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from verydeep.report.chart.axis import axis, distinct
from verydeep.report.chart.figure import Chart, Row, Rows, altair_chart, drawable, own_names, tooltip
from verydeep.report.number import is_number
from verydeep.report.theme import CELLS, INK

PANEL = 220  # pixels, width and height of a map; the page fits it to its own width
MOST = 3  # panels side by side
FEW = 12  # values of an axis that each have a label


def grid_chart(
    rows: Rows,
    *,
    name: str,
    title: str,
    x: str,
    y: str,
    value: str,
    panel: str | None = None,
    text: str | None = None,
    caption: str = "",
    x_title: str = "",
    y_title: str = "",
    value_title: str = "",
    log: bool = False,
) -> Chart:
    """Numbers as shades or words as colours; one map a panel, all in the same colours.

    Args:    x, y: columns of words or of evenly spaced numbers
             value: a column of numbers, or of at most as many different words as `theme.CELLS`
             panel: the column that says in which map a cell lies
             text: a column of short words to write in the cells
             log: whether the shades are of the logarithm
    """
    fields = {"x": x, "y": y, "value": value, "panel": panel} | ({"text": text} if text else {})
    data, missing = own_names(rows, fields), ""
    words = any(isinstance(row["value"], str) for row in data)
    if not words:
        data, missing = drawable(data, {"value": log})
    places: dict[str, Any] = {}
    for channel, second, heading in ((alt.X, alt.X2, x_title or x), (alt.Y, alt.Y2, y_title or y)):
        places |= _cells(data, channel, second, heading)
    said = tooltip(panel=panel or "", x=x_title or x, y=y_title or y)
    said += tooltip(**{"word" if words else "value": value_title or value})
    if words:
        data = [row | {"word": row["value"]} for row in data]
    base = alt.Chart().encode(**places)
    shade = _words(data) if words else _numbers(data, value_title or value, log=log)
    layers: list[Any] = [base.mark_rect().encode(color=shade, tooltip=said)]
    if text:
        layers.append(base.mark_text(color=INK, fontSize=12).encode(text="text:N"))
    drawing = _panels(layers, data, labelled=panel is not None)
    return altair_chart(drawing, name=name, title=title, caption=[caption, missing])


def _panels(layers: list[Any], data: list[Row], *, labelled: bool) -> Any:
    panels = distinct(row["panel"] for row in data)
    header = alt.Header(title=None, labels=labelled, labelFontWeight="bold")
    across, down = (len(distinct(row[field] for row in data)) or 1 for field in ("x", "y"))
    height = PANEL if max(across, down) > FEW else PANEL * min(1.0, max(0.4, down / across))
    one = alt.layer(*layers, data=alt.InlineData(values=data)).properties(width=PANEL, height=height)
    facet = alt.Facet("panel:N", sort=panels, header=header)
    drawing = one.facet(facet=facet, columns=columns(len(panels), MOST), spacing=20).resolve_axis(x="independent")
    drawing.usermeta = {"panels": len(panels)}
    return drawing


def columns(panels: int, most: int) -> int:
    """Columns of as few rows as can be, as even as can be.

    >>> [columns(panels, 3) for panels in (0, 1, 3, 4, 5, 7)]
    [1, 1, 3, 2, 3, 3]
    """
    rows = max(1, math.ceil(panels / most))
    return max(1, math.ceil(panels / rows))


def _cells(data: list[Row], channel: Any, second: Any, title: str) -> dict[str, Any]:
    """A band for each of few values; edges between many numbers, which are written into the rows."""
    field = "x" if channel is alt.X else "y"
    values = distinct(row[field] for row in data)
    if len(values) <= FEW or not all(is_number(value) for value in values):
        gaps = alt.Scale(paddingInner=0.06)
        plain = alt.Axis(labelAngle=0, domain=False, ticks=False, grid=False)
        return {field: channel(f"{field}:O", sort=values, title=title, axis=plain, scale=gaps)}
    half = (max(values) - min(values)) / (len(values) - 1) / 2
    for row in data:
        # A little over the next cell, or hairlines show between them.
        row |= {f"{field}_from": row[field] - half, f"{field}_to": row[field] + 1.08 * half}
    scale = alt.Scale(domain=[min(values) - half, max(values) + half], nice=False)
    plain = alt.Axis(tickCount=5, grid=False)
    return {
        field: channel(f"{field}_from:Q", title=title, scale=scale, axis=plain),
        f"{field}2": second(f"{field}_to:Q"),
    }


def _words(data: Sequence[Row]) -> alt.Color:
    names = distinct(row["value"] for row in data)
    if len(names) > len(CELLS):
        raise ValueError(f"value: {len(names)} different words; a grid tells at most {len(CELLS)} apart")
    scale = alt.Scale(domain=names, range=list(CELLS[: len(names)]))
    return alt.Color("value:N", scale=scale, legend=alt.Legend(title=None, symbolType="square", symbolStrokeWidth=0))


def _numbers(data: Sequence[Row], title: str, *, log: bool) -> alt.Color:
    numbers = axis([row["value"] for row in data], title=title, log=log)
    ticks = {"values": numbers["axis"].values, "labelExpr": numbers["axis"].labelExpr} if log else {}
    scale = alt.Scale(scheme="viridis", type="log" if log else "linear", nice=False)
    return alt.Color("value:Q", title=title, scale=scale, legend=alt.Legend(gradientLength=PANEL, tickCount=4, **ticks))
