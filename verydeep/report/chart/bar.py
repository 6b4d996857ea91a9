"""Bars by category, the published value beside the measured one."""

from collections.abc import Mapping
from typing import Any

import altair as alt

from verydeep.report.chart.axis import bands, distinct, legend_columns
from verydeep.report.chart.figure import Chart, Row, Rows, altair_chart, layers_of, tooltip
from verydeep.report.number import is_number, value_text
from verydeep.report.theme import INK, PALE, SERIES

BAR = 20  # pixels


def bar_chart(
    rows: Rows,
    *,
    name: str,
    title: str,
    category: str,
    measured: str,
    published: str | None = None,
    caption: str = "",
    x_title: str = "",
    band: tuple[str, str] | None = None,
) -> Chart:
    """Bars from zero with their numbers; for each category the published one first.

    Args:    measured, published: columns; a word or None (`fail`) is written in place of a bar, an absent one left out
             band: the columns of a lower and an upper bound of what was measured
    """
    data = [bar for row in rows for bar in _bars(row, category, {"published": published, "measured": measured}, band)]
    categories = distinct(row["category"] for row in data)
    kinds = [kind for kind in ("published", "measured") if any(row["which"] == kind for row in data)]
    base = alt.Chart(alt.InlineData(values=data)).encode(
        y=bands(categories), yOffset=alt.YOffset("which:N", sort=kinds, scale=alt.Scale(paddingInner=0.1))
    )
    legend = alt.Legend(title=None, symbolType="square", columns=legend_columns(kinds)) if len(kinds) > 1 else None
    colours = [PALE if kind == "published" else SERIES[0] for kind in kinds]
    bar = base.mark_bar(cornerRadiusEnd=2).encode(
        x=alt.X("value:Q", title=x_title or measured, scale=_scale(data), axis=alt.Axis(grid=True, tickCount=6)),
        color=alt.Color("which:N", scale=alt.Scale(domain=kinds, range=colours), legend=legend),
        tooltip=tooltip(category=category, which="which", value=x_title or measured),
    )
    number = base.mark_text(align="left", dx=5, color=INK, fontSize=12).encode(x="end:Q", text="text:N")
    layers: list[Any] = [bar, number]
    if any("low" in row for row in data):
        spread = base.transform_filter("isValid(datum.low)").mark_rule(color=INK, strokeWidth=1.5)
        layers.insert(1, spread.encode(x="low:Q", x2="high:Q"))
    sentences = [caption, "Thin lines: the range of what was measured." if len(layers) == 3 else ""]
    drawing = layers_of(*layers, height=BAR * len(data) + 12 * len(categories))
    return altair_chart(drawing, name=name, title=title, caption=sentences)


def _scale(data: list[Row]) -> alt.Scale:
    """From zero, with room at the right for the longest bar's number."""
    ends = [row["end"] for row in data]
    return alt.Scale(domain=[min([0, *ends]), 1.2 * max([0, *ends]) or 1], nice=False)


def _bars(
    row: Mapping[str, Any], category: str, columns: Mapping[str, str | None], band: tuple[str, str] | None
) -> list[Row]:
    bars: list[Row] = []
    for which, column in columns.items():
        if column is None or column not in row:
            continue
        value = row[column]
        length = value if is_number(value) else None
        bar = {"category": str(row[category]), "which": which, "value": length, "text": value_text(value)}
        bar["end"] = length or 0
        if band and which == "measured" and is_number(row.get(band[0])) and is_number(row.get(band[1])):
            bar |= {"low": row[band[0]], "high": row[band[1]], "end": row[band[1]]}
        bars.append(bar)
    return bars
