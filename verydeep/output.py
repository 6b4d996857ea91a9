"""What a verb leaves behind: a table on stdout, a JSON file. Torch-free; `cli` calls it."""

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
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
    if Path(json_file).exists() and (Path(json_file).parent / "config.yaml").exists():
        raise UsageError(f"argument --json {json_file!r}: is a file of a run; give another name")
    if not Path(json_file).parent.is_dir():
        raise UsageError(f"argument --json {json_file!r}: must lie in an existing directory")


def write_json(json_file: str | None, values: Mapping[str, Any]) -> None:
    """Write the values as standard JSON."""
    if json_file is not None:
        Path(json_file).write_text(json_text(values, indent=2) + "\n", encoding="utf-8")


def check_new(out: str | None, endings: Sequence[str]) -> None:
    """Refuse a file to write that is there already, lies in no directory or has another ending.

    Raises:  UsageError: naming the rule.
    """
    if out is None:
        return
    path = Path(out)
    if path.suffix.lower() not in endings:
        raise UsageError(f"argument --out {out!r}: must end in {' or '.join(endings)}")
    if path.exists():
        raise UsageError(f"argument --out {out!r}: exists; give another name")
    if not path.parent.is_dir():
        raise UsageError(f"argument --out {out!r}: must lie in an existing directory")


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table as comma-separated values (RFC 4180 but for its line ends), None as an empty cell.

    >>> csv_text(["path", "error"], [["a,b.png", None]])
    'path,error\\n"a,b.png",\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    return text.getvalue()


class Steps:
    """Context manager that shows how far a list of work is: a bar on a terminal, a line for each piece elsewhere."""

    def __enter__(self) -> "Steps":
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._live = None
        if sys.stdout.isatty():
            columns = (BarColumn(bar_width=16), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._live = Progress(*columns, console=Console())
            self._task = self._live.add_task("", total=None)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def report(self, done: int, total: int, what: str, seconds_left: float | None) -> None:
        """Say that `done` of `total` pieces are done, `what` the last of them."""
        left = "" if seconds_left is None else f"{timedelta(seconds=round(seconds_left))} left"
        if self._live is not None:
            self._live.update(self._task, completed=done, total=total, description=f"{left}  {what}")
        elif what:
            print(f"{done}/{total}  {left}  {what}", flush=True)


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
