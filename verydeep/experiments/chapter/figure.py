"""The chapter's figures from the measurements of its experiments."""

import statistics
from collections.abc import Callable, Sequence

import torch

from verydeep.experiments.chapter.cells import PANELS, moved_cells
from verydeep.experiments.chapter.claims import BY_ID
from verydeep.experiments.experiment import Results
from verydeep.report.chart import Chart, dot_chart, grid_chart, histogram_chart, line_chart

CHANCE = "an error of 90 % is guessing"


def derivative_charts(results: Results) -> list[Chart]:
    """Figure 11.1: derivatives along the line, and the distribution of their correlation."""
    curves = results["derivatives"][0]
    lines = [
        {"x": x, "dy/dx": y, "network": kind}
        for kind, values in curves["derivatives"].items()
        for x, y in zip(curves["inputs"], values, strict=True)
    ]
    draws = {kind: values[0]["values"] for kind, values in results.items() if kind != "derivatives"}
    published = {kind: BY_ID[f"fig11.1-{kind}"].published for kind in draws if f"fig11.1-{kind}" in BY_ID}
    return [
        line_chart(
            lines,
            name="fig11-1-derivatives",
            title="Derivative of a random network along a line",
            x="x",
            y="dy/dx",
            series="network",
            x_title="input x",
            caption="One network of each kind, width 100; divided by its largest absolute value.",
        ),
        histogram_chart(
            draws,
            name="fig11-1-correlations",
            title="Correlation of neighbouring derivatives",
            x_title="correlation",
            published=published,
            caption="500 draws, each a mean over ten networks, beside the published value.",
        ),
    ]


def variance_charts(results: Results) -> list[Chart]:
    """Figure 11.2: variance by depth, median and central 99 % of the draws."""
    rows = []
    for kind, measurements in results.items():
        variances = torch.tensor(measurements[0]["variances"], dtype=torch.float64)
        low, middle, high = variances.quantile(torch.tensor([0.005, 0.5, 0.995], dtype=torch.float64), dim=0)
        for depth in range(variances.shape[1]):
            triple = {"low": low[depth].item(), "variance": middle[depth].item(), "high": high[depth].item()}
            rows.append({"units": depth, "remedy": kind} | triple)
    published = [
        {"units": int(name.rsplit("-", 1)[1]), "remedy": name.split("-")[1], "variance": BY_ID[name].published}
        for name in BY_ID
        if name.startswith("fig11.2-")
    ]
    return [
        line_chart(
            rows,
            name="fig11-2-variance",
            title="Variance after residual units",
            x="units",
            y="variance",
            series="remedy",
            band=("low", "high"),
            published=published,
            log_y=True,
            caption="Median and central 99 % of 500 draws; diamonds are published values.",
        )
    ]


def shared_cell_charts(results: Results) -> list[Chart]:
    """Figure 11.3: the cells whose output moves when one input cell is replaced."""
    rows = [
        {
            "sample": sample + 1,
            "channel": channel + 1,
            "norm": name,
            "output": "replaced" if (sample, channel) == (1, 2) else "moves" if moved[sample, channel] else "stays",
        }
        for name, panel in PANELS.items()
        for moved in [moved_cells(*panel)]
        for sample in range(4)
        for channel in range(6)
    ]
    return [
        grid_chart(
            rows,
            name="fig11-3-cells",
            title="Which values share their statistics",
            x="channel",
            y="sample",
            value="output",
            panel="norm",
            caption="Channel 3 of sample 2 is replaced; the outputs that move share its mean and variance.",
        )
    ]


def fit_charts(name: str, *, error: str = "test_error_percent") -> Callable[[Results], Sequence[Chart]]:
    """Training loss of each trial, and an error of each seed.

    Args:    name: of the files
             error: the key of the number that is judged
    """

    def charts(results: Results) -> list[Chart]:
        curves = [
            {"step": step, "training loss": loss, "network": trial}
            for trial, measurements in results.items()
            for step, loss in measurements[0]["curve"]
        ]
        errors = [
            {"network": trial, "error": measurement[error]}
            for trial, measurements in results.items()
            for measurement in measurements
        ]
        judged = error.replace("_error_percent", " error, %").replace("train_loss", "training loss")
        return [
            line_chart(
                curves,
                name=f"{name}-loss",
                title="Training loss",
                x="step",
                y="training loss",
                series="network",
                log_y=True,
                caption="Seed 0, mean over the steps of each log line.",
            ),
            dot_chart(
                errors,
                name=f"{name}-error",
                title=judged.capitalize(),
                category="network",
                value="error",
                x_title=judged,
                caption=f"Each dot is a seed; {CHANCE}." if "error" in error else "Each dot is a seed.",
            ),
        ]

    return charts


def lesion_charts(results: Results) -> list[Chart]:
    """Test error by the place of the deleted unit."""
    rows = [
        {"depth": place / len(errors), "test error, %": error, "network": name}
        for name, measurements in results.items()
        for errors in [[statistics.median(column) for column in _columns(measurements, "deleted_error_percent")]]
        for place, error in enumerate(errors, start=1)
    ]
    return [
        line_chart(
            rows,
            name="veit-lesion",
            title="Test error with one unit deleted",
            x="depth",
            y="test error, %",
            series="network",
            x_title="place of the deleted unit, as a fraction of the depth",
            caption=f"Median over seeds; {CHANCE}.",
        )
    ]


def path_charts(results: Results) -> list[Chart]:
    """Share of the gradient by path length."""
    measurements = results["preact_resnet110"]
    rows = [
        {"layers": 2 * k, "share of the gradient": statistics.median(column), "measured by": how}
        for how, key in (("single paths times their number", "shares"), ("paths summed up", "summed_shares"))
        for k, column in enumerate(_columns(measurements, key))
    ]
    return [
        line_chart(
            rows,
            name="veit-paths",
            title="Gradient by path length",
            x="layers",
            y="share of the gradient",
            series="measured by",
            x_title="layers of the path",
            caption="preact_resnet110, 54 units of two layers; median over seeds.",
        )
    ]


def landscape_charts(results: Results) -> list[Chart]:
    """Loss along a line and on a plane through the trained weights."""
    line = [
        {"position": position, "loss": loss, "network": name}
        for name, measurements in results.items()
        for position, loss in zip(measurements[0]["positions"], measurements[0]["losses"], strict=True)
    ]
    plane = [
        {"first": a, "second": b, "loss": measurements[0]["plane"][i][j], "network": name}
        for name, measurements in results.items()
        for i, a in enumerate(measurements[0]["plane_positions"])
        for j, b in enumerate(measurements[0]["plane_positions"])
    ]
    return [
        line_chart(
            line,
            name="li-line",
            title="Loss along a random direction",
            x="position",
            y="loss",
            series="network",
            log_y=True,
            x_title="step along a filter-normalised direction",
            caption="Seed 0; position 0 is the trained network.",
        ),
        grid_chart(
            plane,
            name="li-plane",
            title="Loss on a plane",
            x="first",
            y="second",
            value="loss",
            panel="network",
            log=True,
            x_title="first direction",
            y_title="second direction",
            value_title="loss",
            caption="Two random filter-normalised directions, seed 0.",
        ),
    ]


def mismatch_charts(results: Results) -> list[Chart]:
    """Gap between training output and prediction by batch size and momentum."""
    rows = [
        {"batch size": gap["batch_size"], "relative gap": gap["output_gap"], "momentum": str(gap["momentum"])}
        for gap in results["gap"][0]["gaps"]
    ]
    return [
        line_chart(
            rows,
            name="bn-mismatch",
            title="Training output against prediction",
            x="batch size",
            y="relative gap",
            series="momentum",
            log_x=True,
            log_y=True,
            caption="Seed 0; norm of the difference over norm of the prediction.",
        )
    ]


def _columns(measurements: Sequence[dict], key: str) -> list[tuple[float, ...]]:
    """A list of one number a seed for each place of a measured list."""
    return list(zip(*(measurement[key] for measurement in measurements), strict=True))
