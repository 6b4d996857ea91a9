"""The page of a learning-rate range test: its curve. `LrCurve.to_html` calls it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verydeep.report.chart import line_chart
from verydeep.report.page import render_page
from verydeep.report.section import Section


def write_page(
    lrs: Sequence[float], curves: Mapping[str, Sequence[float]], text: str, facts: Mapping[str, Any], out: Path
) -> None:
    """Write the page, and its figure beside it.

    Args:    curves: losses by what they are, one a rate
             text: what they suggest
             facts: for the foot; `model` and `data` are in the title
    Raises:  RunError: if a file cannot be written.
    """
    rows = [
        {"lr": lr, "loss": loss, "curve": name}
        for name, losses in curves.items()
        for lr, loss in zip(lrs, losses, strict=True)
    ]
    chart = line_chart(
        rows,
        name="find-lr",
        title="Loss while the learning rate rises",
        x="lr",
        y="loss",
        series="curve",
        x_title="learning rate",
        log_x=True,
        log_y=True,
        caption="One step at each rate. Smoothed from both sides; losses above the first ones count as these.",
    )
    section = Section("find-lr", "Learning-rate range test", text, charts=[chart] if rows else [])
    render_page("Learning rate of {model} on {data}".format_map(facts), "", [section], out, facts)
