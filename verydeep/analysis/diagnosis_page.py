"""The page of a diagnosis: findings first, then signal and gradient by depth, then the table of sites."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verydeep.analysis.finding import Finding, finding_cells
from verydeep.analysis.site import Site
from verydeep.report.chart import Chart, line_chart
from verydeep.report.page import render_page
from verydeep.report.section import Section, Table

MOST_POINTS = 1500  # of a line: more cannot be told apart on a screen
MOST_ROWS = 4000
COLUMNS = (
    "site",
    "kind",
    "depth",
    "mean square",
    "gradient",
    "channel variance",
    "branch / shortcut",
    "dead",
    "saturated",
    "cut off",
)


def write_page(
    model: str, findings: Sequence[Finding], sites: Sequence[Site], facts: Mapping[str, Any], out: Path
) -> None:
    """Write the page, and its figures beside it.

    Raises:  RunError: if a file cannot be written.
    """
    found = [finding_cells(finding) for finding in findings]
    table = Table("", ("severity", "rule", "site", "evidence", "why", "remedy"), found)
    sections = [
        Section(
            "Findings", "causes before symptoms", "" if found else "Nothing found.", tables=[table] if found else []
        ),
        Section("Depth", "signal and gradient from input to output", charts=_charts(sites)),
        Section("Sites", "where signals were read", _left_out(sites), tables=[_table(sites)]),
    ]
    render_page(f"Diagnosis of {model}", "", sections, out, facts)


def _charts(sites: Sequence[Site]) -> list[Chart]:
    titles = {"mean_square": "Mean square of the signal", "gradient": "Norm of the gradient"}
    charts = []
    for quantity, title in titles.items():
        rows = [
            {"place": place, quantity: getattr(site, quantity), "kind": _series(site), "site": site.site}
            for place, site in enumerate(sites, start=1)
            if site.kind in ("weight", "norm", "sum") and getattr(site, quantity)
        ]
        rows = thinned(rows)
        if rows:
            charts.append(
                line_chart(
                    rows,
                    name=quantity.replace("_", "-"),
                    title=title,
                    x="place",
                    y=quantity,
                    series="kind",
                    x_title="site, in running order",
                    y_title=title.lower(),
                    log_y=True,
                    hover="site",
                )
            )
    return charts


def _series(site: Site) -> str:
    return {"weight": "weights' outputs", "norm": "norms' outputs", "sum": "residual sums"}[site.kind]


def thinned(rows: Sequence[dict[str, Any]], *, most: int = MOST_POINTS) -> list[dict[str, Any]]:
    """At most so many rows, evenly taken, the first among them.

    >>> [row["i"] for row in thinned([{"i": i} for i in range(10)], most=4)]
    [0, 3, 6, 9]
    """
    step = -(-len(rows) // most) if rows else 1
    return list(rows[::step])


def _shown(sites: Sequence[Site]) -> list[Site]:
    """All sites, or where they are too many weights and sums alone."""
    if len(sites) <= MOST_ROWS:
        return list(sites)
    return [site for site in sites if site.kind in ("weight", "sum", "input")][:MOST_ROWS]


def _left_out(sites: Sequence[Site]) -> str:
    left = len(sites) - len(_shown(sites))
    return f"{left} sites are left out here; the JSON file has all." if left else ""


def _table(sites: Sequence[Site]) -> Table:
    rows = [
        (
            site.site,
            site.kind,
            site.depth,
            site.mean_square,
            site.gradient,
            site.channel_variance,
            site.branch_ratio,
            site.dead,
            site.saturated,
            site.truncated,
        )
        for site in _shown(sites)
    ]
    return Table("", COLUMNS, rows)
