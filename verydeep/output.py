"""What a verb leaves behind: a table on stdout, a JSON file. Torch-free; `cli` calls it."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verydeep.errors import UsageError
from verydeep.files import json_text


def check_writable(json_file: str | None) -> None:
    """Refuse a JSON file that cannot be written, before the hours that its content takes.

    Raises:  UsageError: if it is a directory or lies in none.
    """
    if json_file is None:
        return
    if Path(json_file).is_dir():
        raise UsageError(f"argument --json {json_file!r}: must be a file, not a directory")
    if not Path(json_file).parent.is_dir():
        raise UsageError(f"argument --json {json_file!r}: must lie in an existing directory")


def write_json(json_file: str | None, values: Mapping[str, Any]) -> None:
    """Write the values as standard JSON."""
    if json_file is not None:
        Path(json_file).write_text(json_text(values, indent=2) + "\n", encoding="utf-8")


def print_table(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """A table fitted to the terminal; plain, and as wide as it needs, where stdout is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    plain: dict[str, Any] = {} if sys.stdout.isatty() else {"force_terminal": False, "no_color": True, "width": 100_000}
    Console(file=sys.stdout, markup=False, emoji=False, highlight=False, **plain).print(table)


def _cell(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() if abs(value) >= 10_000:
            return f"{value:,}"
        case float():
            return f"{value:.4g}"
        case list() | tuple():
            return ", ".join(map(_cell, value))
    return str(value)
