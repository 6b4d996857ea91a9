"""What a page shows, as data: one section an experiment, with its claims, figures and settings.

The command line stores sections as JSON and makes pages of them without running anything again.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verydeep.errors import UsageError
from verydeep.report.chart.figure import Chart

HOLDS, FAILS, NOT_RUN = "holds", "fails", "not run"
VERDICTS = (HOLDS, FAILS, NOT_RUN)
Cell = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers, shown as they are.

    Args:    title: one line
             columns: their names
             rows: as many cells each as there are columns
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Section:
    """One experiment: a table, figure or worked example of a source.

    Args:    name: as in the source, `fig11.1`
             title: one line
             text: what the source says; an empty line between paragraphs
             cells: as in NAME.json; each may have a `claim`, which is the claim in words, and a `unit`
             charts: its figures
             settings: where they differ from the source, or the source is silent
             tables: rows that are no claims

    Raises:  UsageError: if a cell has no id, or a verdict that is none.
    """

    name: str
    title: str
    text: str = ""
    cells: Sequence[Cell] = ()
    charts: Sequence[Chart] = ()
    settings: str = ""
    tables: Sequence[Table] = ()

    def __post_init__(self) -> None:
        for cell in self.cells:
            if not isinstance(cell, Mapping) or not isinstance(cell.get("id"), str):
                raise UsageError(f"section {self.name!r}: each cell must have an id")
            if cell.get("verdict") not in VERDICTS:
                rule = f"verdict {cell.get('verdict')!r} must be one of {', '.join(VERDICTS)}"
                raise UsageError(f"section {self.name!r}: cell {cell['id']!r}: {rule}")

    def to_dict(self) -> dict[str, Any]:
        """JSON values, from which `from_dict` makes the same section."""
        return {
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "cells": [dict(cell) for cell in self.cells],
            "charts": [chart.to_dict() for chart in self.charts],
            "settings": self.settings,
            "tables": [dataclasses.asdict(table) for table in self.tables],
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Section":
        """The section that `to_dict` gave; only name and title must be there.

        Raises:  UsageError: if a part is missing or of another type.
        """
        parts: dict[str, Any] = {"text": "", "cells": [], "charts": [], "settings": "", "tables": []}
        parts |= {part: values.get(part) for part in ("name", "title", *parts) if part in values or part not in parts}
        for part, value in parts.items():
            kind = list if part in ("cells", "charts", "tables") else str
            if not isinstance(value, kind):
                raise UsageError(f"section {values.get('name')!r}: {part} must be a {kind.__name__}")
        if not all(isinstance(chart, dict) for chart in parts["charts"]):
            raise UsageError(f"section {values.get('name')!r}: each chart must be a mapping")
        if not all(isinstance(table, dict) and set(table) == {"title", "columns", "rows"} for table in parts["tables"]):
            raise UsageError(f"section {values.get('name')!r}: each table must have title, columns and rows")
        charts, tables = map(Chart.from_dict, parts["charts"]), (Table(**table) for table in parts["tables"])
        return Section(**parts | {"charts": list(charts), "tables": tuple(tables)})


def counts(cells: Sequence[Cell]) -> dict[str, int]:
    """How many claims have each verdict.

    >>> counts([{"id": "a", "verdict": "holds"}])
    {'holds': 1, 'fails': 0, 'not run': 0}
    """
    return {verdict: sum(cell["verdict"] == verdict for cell in cells) for verdict in VERDICTS}
