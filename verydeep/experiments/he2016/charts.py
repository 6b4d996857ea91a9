"""Figures of the paper's experiments: courses of training as the paper draws them, errors, and what was observed."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from verydeep.experiments.experiment import Measurement, Results
from verydeep.experiments.he2016.network import DEEP_STEPS, trained_for
from verydeep.report.chart.course import course_chart
from verydeep.report.chart.dot import dot_chart
from verydeep.report.chart.figure import Chart
from verydeep.report.chart.line import line_chart

MOST_LINES = 6  # of one figure of courses
WIDE = 4.0  # largest loss over the least from which their axis is logarithmic
MOST_POINTS = 60  # of one course of training
COURSES: dict[str, Sequence[tuple[str, Sequence[str]]]] = {
    "fig1": [("1,001 layers", ("resnet1001", "full_preact-resnet1001"))],
    "fig3": [
        ("Scaling by 0.5", ("resnet110", "scale0.5-branch0.5")),
        ("Exclusive gate", ("resnet110", "exclusive-gate-b-6")),
        ("Shortcut-only gate, bias 0", ("resnet110", "shortcut-gate-b0")),
        ("1x1 convolutions", ("resnet110", "conv1x1")),
    ],
    "fig6": [
        ("Batch norm after the addition, 110 layers", ("resnet110", "bn_after_addition-resnet110")),
        ("Pre-activation, 164 layers", ("resnet164", "full_preact-resnet164")),
    ],
    "degradation": [("Plain and residual networks", ("plain20", "plain56", "resnet20", "resnet56"))],
}
GRADIENTS = (  # of table 1, the networks whose gradients are drawn
    "resnet110", "scale0-branch1", "scale0.5-branch1", "exclusive-gate-b0", "exclusive-gate-b-6", "shortcut-gate-b0",
    "shortcut-gate-b-6", "conv1x1",
)  # fmt: skip
TRUNCATING = ("resnet110", "bn_after_addition-resnet110", "resnet164", "bn_after_addition-resnet164")
DEPTHS = ("resnet164", trained_for(DEEP_STEPS, "resnet164"), "resnet1001")
# What was observed: figure by figure, and the networks in it; () for all.
OBSERVED: dict[str, Sequence[tuple[str, Sequence[str]]]] = {
    "table1": [("gradient_norm", GRADIENTS), ("gains", ())],
    "table2": [("truncated", TRUNCATING), ("truncation", TRUNCATING), ("gradient_norm", ())],
    "fig1": [("truncated", DEPTHS), ("truncation", DEPTHS), ("gradient_norm", ())],
    "forward-signal": [("mean", ())],
}


def charts_of(name: str, results: Results) -> list[Chart]:
    """All figures of a part."""
    courses = COURSES.get(name)
    if courses is None:
        courses = [("Courses of training", list(results)[:MOST_LINES])] if len(results) <= MOST_LINES else []
    charts = [
        _course(f"{name}-course-{i}", title, {network: results[network] for network in networks})
        for i, (title, networks) in enumerate(courses, start=1)
        if results and all(network in results for network in networks)
    ]
    if results and (not courses or name.startswith("table")):
        charts += _errors(name, results)
    for what, networks in OBSERVED.get(name, ()):
        shown = {network: results[network] for network in networks or results if network in results}
        if shown:
            charts.append(_OBSERVED[what](f"{name}-{what}", shown))
    return charts


def _course(name: str, title: str, results: Results) -> Chart:
    losses, errors = [], []
    for network, measurements in results.items():
        for step, loss in _median_course(measurements, "curve"):
            losses.append({"step": step, "loss": loss, "network": network})
        for step, error in _median_course(measurements, "test_curve"):
            errors.append({"step": step, "error_percent": error, "network": network})
    caption = "Training loss dashed, left; test error solid, right. Medians over seeds."
    shown = _thinned(losses, results)
    least, most = (limit((row["loss"] for row in shown), default=1.0) for limit in (min, max))
    wide = least > 0 and most > WIDE * least
    return course_chart(shown, errors, name=name, title=title, caption=caption, log_loss=wide)


def _median_course(measurements: Sequence[Measurement], key: str) -> list[tuple[int, float]]:
    by_step: dict[int, list[float]] = {}
    for measurement in measurements:
        for step, value, *_ in measurement[key]:
            by_step.setdefault(step, []).append(value)
    return [(step, statistics.median(values)) for step, values in sorted(by_step.items())]


def _thinned(rows: list[dict[str, Any]], results: Results) -> list[dict[str, Any]]:
    """Means of neighbouring points, so that at most MOST_POINTS a network are left."""
    thinned = []
    for network in results:
        own = [row for row in rows if row["network"] == network]
        size = -(-len(own) // MOST_POINTS) or 1
        for start in range(0, len(own), size):
            part = own[start : start + size]
            loss = statistics.fmean(row["loss"] for row in part)
            thinned.append({"step": part[-1]["step"], "loss": loss, "network": network})
    return thinned


def _errors(name: str, results: Results) -> list[Chart]:
    rows = [
        {"network": network, "error": measurement["test_error_percent"]}
        for network, measurements in results.items()
        for measurement in measurements
    ]
    chance = "Chance is 90 % with ten classes; a run that diverged counts as chance."
    return [
        dot_chart(
            rows, name=f"{name}-error", title="Test error by network", category="network", value="error",
            x_title="test error, %", caption=chance,
        )
    ]  # fmt: skip


def _by_unit(key: str, title: str, y_title: str, *, when: int, log: bool) -> Callable[[str, Results], Chart]:
    """A figure of what was observed at each unit, before (0) or after (-1) the training."""

    def chart(name: str, results: Results) -> Chart:
        rows = [
            {"unit": unit, y_title: statistics.median(values), "network": network}
            for network, measurements in results.items()
            if all(measurement["observed"] and not (when and measurement["diverged"]) for measurement in measurements)
            for unit, values in enumerate(
                zip(*(measurement["observed"][when][key] for measurement in measurements), strict=True), start=1
            )
            if None not in values
        ]
        moment = "before the first step" if when == 0 else "after the last step"
        return line_chart(
            rows, name=name, title=title, x="unit", y=y_title, series="network", log_y=log,
            caption=f"On 128 training images, {moment}; medians over seeds.",
        )  # fmt: skip

    return chart


def _truncation(name: str, results: Results) -> Chart:
    """The share of y that the activation after the addition cuts off, over the training."""
    rows = []
    for network, measurements in results.items():
        shares: dict[int, list[float]] = {}
        for read in (read for measurement in measurements for read in measurement["observed"]):
            if None not in read["truncated"]:
                shares.setdefault(read["step"], []).append(statistics.fmean(read["truncated"]))
        rows += [
            {"step": step, "share of y below zero": statistics.median(values), "network": network}
            for step, values in sorted(shares.items())
        ]
    return line_chart(
        rows, name=name, title="Share that the ReLU after the addition cuts off, over the training", x="step",
        y="share of y below zero", series="network",
        caption="Mean over units, on 128 training images; medians over seeds.",
    )  # fmt: skip


def _gains(name: str, results: Results) -> Chart:
    """The product of the shortcut gains at the start and the end."""
    rows = [
        {"network": f"{network}, {moment}", "product": measurement["observed"][place]["gain_product"]}
        for network, measurements in results.items()
        for moment, place in (("start", 0), ("end", -1))
        for measurement in measurements
        if measurement["observed"]
    ]
    return dot_chart(
        rows, name=name, title="Product of the shortcut gains (Eq. 8)", category="network", value="product", log_x=True,
        x_title="product over the units that keep the dimension",
        caption="The factor with which the gradient goes through the shortcuts alone; plain networks have 0.",
    )  # fmt: skip


_OBSERVED = {
    "gradient_norm": _by_unit("gradient_norm", "Gradient by unit at the start", "gradient norm", when=0, log=True),
    "truncated": _by_unit(
        "truncated", "Share that the ReLU after the addition cuts off, at the end", "share of y below zero", when=-1,
        log=False,
    ),
    "truncation": _truncation,
    "mean": _by_unit("mean", "Forward signal at the end", "mean of the unit's output", when=-1, log=False),
    "gains": _gains,
}  # fmt: skip
