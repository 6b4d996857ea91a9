"""Courses of training as the papers draw them: training loss dashed on the left, test error solid on the right."""

import altair as alt

from verydeep.report.chart.axis import axis, distinct, legend_columns
from verydeep.report.chart.figure import Chart, Rows, altair_chart, drawable, layers_of, own_names, tooltip
from verydeep.report.theme import SERIES


def course_chart(
    losses: Rows, errors: Rows, *, name: str, title: str, caption: str = "", log_loss: bool = False
) -> Chart:
    """Training loss and test error over steps, one colour a network.

    Args:    losses: rows of `step`, `loss`, `network`
             errors: rows of `step`, `error_percent`, `network`
    """
    left, missing = drawable(
        own_names(losses, {"x": "step", "y": "loss", "series": "network"}, which="training loss"),
        {"x": False, "y": log_loss},
    )
    right, _ = drawable(
        own_names(errors, {"x": "step", "y": "error_percent", "series": "network"}, which="test error, %"),
        {"x": False, "y": False},
    )
    names = distinct(row["series"] for row in [*left, *right])
    legend = alt.Legend(title=None, columns=legend_columns(names), symbolType="stroke", symbolSize=900)
    scale = alt.Scale(domain=names, range=[SERIES[i % len(SERIES)] for i in range(len(names))])
    colour = alt.Color("series:N", scale=scale, legend=legend)
    steps = alt.X("x:Q", title="step", axis=alt.Axis(tickCount=6))
    told = tooltip(series="network", which="which", x="step", y="value")
    loss = alt.Y("y:Q", **axis([row["y"] for row in left], title="training loss (dashed)", log=log_loss, orient="left"))
    error = alt.Y("y:Q", **axis([], title="test error, % (solid)", log=False, orient="right", grid=False))
    layers = [
        alt.Chart(alt.InlineData(values=left))
        .mark_line(strokeWidth=1.6, strokeDash=[4, 3])
        .encode(steps, loss, colour),
        alt.Chart(alt.InlineData(values=right))
        .mark_line(strokeWidth=2.2, point=alt.OverlayMarkDef(size=45))
        .encode(steps, error, colour, tooltip=told),
    ]
    drawing = layers_of(*layers).resolve_scale(y="independent")
    return altair_chart(drawing, name=name, title=title, caption=[caption, missing])
