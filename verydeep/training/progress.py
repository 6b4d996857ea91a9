"""What a run shows while it works: a live line on a terminal, plain lines in a file or pipe."""

import sys
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Reporter(Protocol):
    """Where a run reports to."""

    def start(self, *, done: int, total: int) -> None: ...
    def update(self, done: int, text: str) -> None: ...
    def log(self, done: int, text: str) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class SilentReporter:
    """Says nothing: for processes beside the main one, and for callers that read the run directory instead."""

    def start(self, *, done: int, total: int) -> None: ...
    def update(self, done: int, text: str) -> None: ...
    def log(self, done: int, text: str) -> None: ...
    def say(self, text: str) -> None: ...
    def close(self) -> None: ...


class PlainReporter:
    """One line a log interval, no carriage returns, for redirected output."""

    def start(self, *, done: int, total: int) -> None:
        self._total = total

    def update(self, done: int, text: str) -> None:
        pass

    def log(self, done: int, text: str) -> None:
        self.say(f"step {done}/{self._total}  {text}")

    def say(self, text: str) -> None:
        print(text, flush=True)

    def close(self) -> None:
        pass


class LiveReporter:
    """A rich progress bar with steps, time left and the latest numbers."""

    def __init__(self, console: Console) -> None:
        columns = (
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, refresh_per_second=4)

    def start(self, *, done: int, total: int) -> None:
        self._task = self._progress.add_task("train", total=total, completed=done, text="")
        self._progress.start()

    def update(self, done: int, text: str) -> None:
        self._progress.update(self._task, completed=done)
        if text:
            self._progress.update(self._task, text=text)

    def log(self, done: int, text: str) -> None:
        self.update(done, text)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


def make_reporter() -> Reporter:
    """Live on a terminal, plain elsewhere."""
    console = Console()
    return LiveReporter(console) if sys.stdout.isatty() and console.is_terminal else PlainReporter()
