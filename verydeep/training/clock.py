"""Time as a run counts it."""

import time


class Clock:
    """Seconds of a run over all the times it was resumed, of a lap between log lines, and since the last save."""

    def __init__(self, before: float) -> None:
        self._start = time.monotonic() - before
        self._lap = self._save = time.monotonic()

    def seconds(self) -> float:
        return time.monotonic() - self._start

    def lap(self) -> float:
        """Seconds since the last call; the next lap begins."""
        now = time.monotonic()
        seconds, self._lap = now - self._lap, now
        return seconds

    def restart_lap(self) -> None:
        self._lap = time.monotonic()

    def since_save(self) -> float:
        return time.monotonic() - self._save

    def saved(self) -> None:
        self._save = time.monotonic()
