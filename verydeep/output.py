"""What a verb leaves behind: a table on stdout, a JSON file. Torch-free; `cli` calls it."""

import csv
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from verydeep.errors import UsageError
from verydeep.files import json_text


def check_writable(flag: str, file: str | None, endings: Sequence[str] = (), *, makes_folder: bool = False) -> None:
    """Refuse a file that cannot be written, or is not ours to write over, before the hours that its content takes.

    Args:    endings: that it must have one of
             makes_folder: whether the folder is made where there is none
    Raises:  UsageError: naming the flag and the rule.
    """
    if file is None:
        return
    path, called = Path(file), f"argument {flag} {file!r}"
    if endings and path.suffix.lower() not in endings:
        raise UsageError(f"{called}: must end in {' or '.join(endings)}")
    try:
        if path.is_dir():
            raise UsageError(f"{called}: must be a file, not a directory")
        if not endings and path.is_file() and path.suffix.lower() != ".json" and path.stat().st_size:
            raise UsageError(f"{called}: is there and no .json file; give another name")
        if path.exists() and (path.parent / "config.yaml").exists():
            raise UsageError(f"{called}: is a file of a run; give another name")
        folder = next(place for place in path.absolute().parents if place.exists() or not makes_folder)
        if not folder.is_dir():
            raise UsageError(f"{called}: must lie in an existing directory")
    except OSError as error:  # a name too long, say
        raise UsageError(f"{called}: cannot be written ({error.strerror})") from None
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{called}: cannot be written (Permission denied)")


def write_json(json_file: str | None, values: Mapping[str, Any]) -> None:
    """Write the values as standard JSON."""
    if json_file is not None:
        Path(json_file).write_text(json_text(values, indent=2) + "\n", encoding="utf-8")


def check_new(flag: str, file: str | None, endings: Sequence[str]) -> None:
    """Refuse a file to write that is there already, lies in no directory or has another ending.

    Raises:  UsageError: naming the rule.
    """
    check_writable(flag, file, endings)
    if file is not None and Path(file).exists():
        raise UsageError(f"argument {flag} {file!r}: exists; give another name")


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
