"""SIGINT, SIGTERM and SIGHUP ask a run to stop at the end of its step; a second SIGINT, as of Ctrl-C, stops at once.

The others do not: a launcher may well terminate, and more than once, what is stopping already.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """Context manager; `name` is the signal that came, None while none has.

    Only the main thread can take signals; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup sets it
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.name = self.name or signal.Signals(number).name
