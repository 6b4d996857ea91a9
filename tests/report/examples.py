"""One chart of each kind with known rows, and sections made of them, for the tests of the report."""

from verydeep.report.chart import (
    Chart,
    bar_chart,
    dot_chart,
    grid_chart,
    histogram_chart,
    line_chart,
)
from verydeep.report.section import Section

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}"


def lines(**options) -> Chart:
    rows = [
        {"block": x, "variance": 2.0**x * scale, "net": net}
        for net, scale in (("plain", 1), ("scaled", 3))
        for x in range(3)
    ]
    options = {"name": "lines", "title": "Variance", "x": "block", "y": "variance", "series": "net"} | options
    return line_chart(rows, **options)


def histograms(**options) -> Chart:
    draws = {"shallow": [0.9 + 0.001 * k for k in range(100)], "deep": [0.5 + 0.002 * k for k in range(100)]}
    options = {"name": "draws", "title": "Correlation", "x_title": "correlation", "published": {"deep": 0.6}} | options
    return histogram_chart(draws, **options)


def bars(**options) -> Chart:
    rows = [
        {"shortcut": "identity", "paper": 6.61, "ours": 6.7, "low": 6.5, "high": 6.9},
        {"shortcut": "dropout", "paper": None, "ours": 21.5},
        {"shortcut": "gate", "paper": 8.7},
    ]
    options = {"name": "bars", "title": "Shortcuts", "category": "shortcut", "band": ("low", "high")} | options
    return bar_chart(rows, measured="ours", published="paper", **options)


def dots(**options) -> Chart:
    rows = [
        {"order": order, "error": error + seed / 10}
        for order, error in (("original", 6), ("full", 5))
        for seed in range(3)
    ]
    options = {
        "name": "dots",
        "title": "Orders",
        "category": "order",
        "value": "error",
        "published": {"full": 5.2},
    } | options
    return dot_chart(rows, **options)


def surface(**options) -> Chart:
    rows = [
        {"a": a / 10, "b": b / 10, "loss": 0.1 + a * a + b * b, "net": net}
        for net in ("plain", "residual")
        for a in range(-7, 8)
        for b in range(-7, 8)
    ]
    options = {
        "name": "surface",
        "title": "Loss",
        "x": "a",
        "y": "b",
        "value": "loss",
        "panel": "net",
        "log": True,
    } | options
    return grid_chart(rows, **options)


def shared(**options) -> Chart:
    rows = [
        {"sample": i, "channel": j, "moves": "moves" if j == 2 else "stays", "mark": "x" if (i, j) == (1, 2) else ""}
        for i in range(4)
        for j in range(6)
    ]
    options = {"name": "shared", "title": "Shared", "x": "channel", "y": "sample", "value": "moves"} | options
    return grid_chart(rows, text="mark", **options)


CHARTS = {"line": lines, "histogram": histograms, "bar": bars, "dot": dots, "surface": surface, "grid": shared}


def sections() -> list[Section]:
    """Two experiments with a claim of each verdict, and one whose every word is hostile."""
    cells = [
        {"id": "shallow", "published": 0.98, "measured": [0.97, 0.99, 0.98], "median": 0.98, "mean": 0.98, "std": 0.01}
        | {"n": 3, "verdict": "holds", "quantity": "correlation", "detail": "Within.", "interval": [0.97, 0.99]},
        {
            "id": "table",
            "published": [[0, -1.5], [2, 1]],
            "measured": [[[0, -1.5], [2, 1]]],
            "median": None,
            "mean": None,
        }
        | {"std": None, "n": 1, "verdict": "fails", "quantity": "table", "detail": "", "interval": None},
        {"id": "big", "published": 8e15, "measured": [], "median": None, "mean": None, "std": None, "n": 0}
        | {"verdict": "not run"},
    ]
    hostile = {
        "id": HOSTILE,
        "claim": HOSTILE,
        "published": HOSTILE,
        "measured": [HOSTILE],
        "median": None,
        "mean": None,
    }
    hostile |= {"std": None, "n": 1, "verdict": "holds", "quantity": HOSTILE, "detail": HOSTILE, "unit": HOSTILE}
    chart = lines(name="hostile", title=HOSTILE, caption=HOSTILE, x_title=HOSTILE, y_title=HOSTILE)
    return [
        Section(
            "fig11.1", "Correlation", "What it says.\n\nMore of it.", cells, [histograms(), lines()], "Biases 0.1."
        ),
        Section("fig11.3", "Cells", cells=[], charts=[shared(), surface(), bars(), dots()]),
        Section(HOSTILE, HOSTILE, HOSTILE, [hostile], [chart], HOSTILE),
    ]


FACTS = {"command": "verydeep reproduce chapter", "seeds": 3, "seconds": 61.5, "versions": {"torch": "2.14.1"}}
