"""What a run shows while it works: a live line on a terminal, plain lines in a file or pipe."""

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column


class Reporter(Protocol):
    """Where a run reports to: its length once, numbers at each log line, and what else is to be said."""

    def start(self, *, done: int, total: int) -> None: ...
    def log(self, done: int, values: Mapping[str, Any]) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class SilentReporter:
    """Says nothing: the processes beside the main one."""

    def start(self, *, done: int, total: int) -> None: ...
    def log(self, done: int, values: Mapping[str, Any]) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class PlainReporter:
    """One line a log interval, without carriage returns, for redirected output."""

    def start(self, *, done: int, total: int) -> None:
        self._first, self._total, self._began = done, total, time.monotonic()

    def log(self, done: int, values: Mapping[str, Any]) -> None:
        seconds_a_step = (time.monotonic() - self._began) / max(1, done - self._first)
        left = timedelta(seconds=round((self._total - done) * seconds_a_step))
        self.say(f"step {done}/{self._total}  epoch {values['epoch']:.2f}  {numbers(values)}  {left} left")

    def say(self, text: str) -> None:
        try:
            print(text, flush=True)
        except OSError:  # the reader has gone: the run goes on, its metrics are on disk
            self.say = lambda text: None  # type: ignore[method-assign]

    def close(self) -> None: ...


class LiveReporter:
    """A rich progress bar with steps, the latest numbers and the time left, within 80 columns."""

    def __init__(self, console: Console) -> None:
        whole = Column(no_wrap=True)
        self._progress = Progress(
            BarColumn(bar_width=10),
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[text]}", table_column=whole),
            TimeRemainingColumn(compact=True, table_column=whole),
            TextColumn("left", table_column=whole),
            console=console,
            refresh_per_second=4,
        )

    def start(self, *, done: int, total: int) -> None:
        self._task = self._progress.add_task("train", total=total, completed=done, text="")
        self._progress.start()

    def log(self, done: int, values: Mapping[str, Any]) -> None:
        self._progress.update(self._task, completed=done, text=numbers(values))

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


def make_reporter() -> Reporter:
    """Live on a terminal, plain elsewhere."""
    console = Console()
    return LiveReporter(console) if sys.stdout.isatty() and console.is_terminal else PlainReporter()


def numbers(values: Mapping[str, Any]) -> str:
    """The numbers of a log line, for people.

    >>> numbers({"loss": 0.5, "error_percent": 12.345, "lr": 0.1, "images_per_second": 987.6})
    'loss 0.500  error 12.3 %  lr 0.1  988 images/s'
    """
    loss, error = values["loss"], values["error_percent"]
    seen = "loss none" if loss is None else f"loss {loss:.3f}  error {error:.1f} %"
    return f"{seen}  lr {values['lr']:.2g}  {values['images_per_second']:.0f} images/s"
