"""The run directory: lock, config.yaml, metrics.jsonl, result.json. The main process has it."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import yaml

from verydeep.config import RunConfig
from verydeep.errors import RunError, UsageError, first_line
from verydeep.files import json_text, parse_json, parse_yaml, write_whole
from verydeep.training.checkpoint import BEST, LAST, PREVIOUS, remove_stale
from verydeep.training.logger import RUN_IDS

CONFIG, METRICS, RESULT, WEIGHTS = "config.yaml", "metrics.jsonl", "result.json", "model.safetensors"
BEST_WEIGHTS, RECALIBRATED_WEIGHTS = "best.safetensors", "model-recalibrated.safetensors"


def default_directory(config: RunConfig, *, root: Path = Path("runs")) -> Path:
    """The first free name for a run: runs/MODEL-DATA-sSEED, then -2, -3, ..."""
    model = config.model.split("/")[-1].replace(".py:", "-")
    data = config.data.rstrip("/").replace(":", "/").split("/")[-1]
    stem = root / f"{model}-{data}-s{config.seed}"
    number = 1
    while (path := stem if number == 1 else stem.with_name(f"{stem.name}-{number}")).exists():
        number += 1
    return path


class RunDirectory:
    """A run directory held by this process alone, from `create` or `open` until `close`.

    Args:    path: the directory
             lock: its open lock file
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock
        self._metrics: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunDirectory":
        """Make the directory of a new run and write its config.

        Raises:  UsageError: if a run is there already, or another process holds it.
        """
        refuse_run(path)
        run = cls._acquire(path)
        try:
            refuse_run(path)  # another process may have begun one before the lock was ours
        except UsageError:
            run.close()
            raise
        run.write(CONFIG, yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True))
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDirectory":
        """Hold the directory of a run that was started.

        Raises:  UsageError: if there is no run, or another process holds it.
        """
        if not (path / CONFIG).exists():
            raise UsageError(f"resume {path}: no {CONFIG} there, so no run to resume")
        run = cls._acquire(path)
        remove_stale(run.checkpoints, LAST, PREVIOUS, BEST)
        remove_stale(path, CONFIG, METRICS, RESULT, WEIGHTS, RUN_IDS)
        return run

    @classmethod
    def _acquire(cls, path: Path) -> "RunDirectory":
        try:
            os.fspath(path).encode()
        except UnicodeEncodeError:
            raise UsageError(f"out {str(path)!r}: must be a name in UTF-8; give another directory") from None
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / ".lock").open("a+")
        except OSError as error:
            raise UsageError(f"out {path}: cannot be written ({error.strerror}); give another directory") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise UsageError(f"out {path}: in use by another process; wait for it, or give another directory") from None
        return cls(path, lock)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def start_logs(self, *, from_step: int) -> None:
        """Open metrics.jsonl, dropping what it holds from this step on, which the run will write again."""
        path = self.path / METRICS
        kept = [line for line in _complete_lines(path) if _values_of(line, path)["step"] < from_step]
        self.write(METRICS, "".join(kept))
        self._metrics = path.open("a")

    def log(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        assert self._metrics is not None
        try:
            self._metrics.write(json_text({"kind": kind, "step": step} | values) + "\n")
            self._metrics.flush()
            os.fsync(self._metrics.fileno())  # a full disk shows here, not in a later line
        except OSError as error:
            raise RunError(
                f"{self.path / METRICS}: cannot be written ({error.strerror}); the last checkpoint is intact"
            ) from None

    def write(self, name: str, text: str) -> None:
        """Write a text file of the run whole or not at all."""
        write_whole(self.path / name, text)

    def close(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
        self._lock.close()


def refuse_run(path: Path) -> None:
    """Refuse a directory that holds a run, or files of one.

    Raises:  UsageError: if it does, with the ways out.
    """
    if (path / CONFIG).exists():
        raise UsageError(f"out {path}: holds a run already; give another directory, or --resume {path}")
    for name in ("checkpoints", METRICS, RESULT, WEIGHTS, RUN_IDS):
        if (path / name).exists():
            raise UsageError(f"out {path}: holds {name} of another run; give another directory")


def read_config(path: Path) -> RunConfig:
    """The config of the run in a directory.

    Raises:  UsageError: if there is none, or it is not one that verydeep wrote.
    """
    if not path.is_dir():
        raise UsageError(f"run {path}: no such run directory")
    try:
        values = parse_yaml((path / CONFIG).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"run {path}: {CONFIG} cannot be read ({first_line(error)})") from None
    if not isinstance(values, dict):
        raise UsageError(f"run {path}: {CONFIG} must hold fields of RunConfig, it holds {type(values).__name__}")
    try:
        return RunConfig.from_dict(values)
    except UsageError as error:
        raise UsageError(f"run {path}: {CONFIG}: {error}") from None


def read_result(path: Path) -> dict[str, Any] | None:
    """The contents of a run's result.json; None if the run is not finished.

    Raises:  UsageError: if it is not as verydeep wrote it.
    """
    if not (path / RESULT).exists():
        return None
    try:
        values = parse_json((path / RESULT).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"run {path}: {RESULT} cannot be read ({first_line(error)})") from None
    if not isinstance(values, dict):
        raise UsageError(f"run {path}: {RESULT} must hold a mapping, it holds {type(values).__name__}")
    for name, kinds in _RESULT_TYPES.items():
        if not isinstance(values.get(name), kinds):
            raise UsageError(f"run {path}: {RESULT}: {name} {values.get(name)!r} is not what verydeep writes")
    return values


_NUMBER = (int, float)
_RESULT_TYPES: dict[str, type | tuple[type, ...]] = {
    "test_error_percent": (*_NUMBER, type(None)), "train_loss": (*_NUMBER, type(None)), "seconds": _NUMBER,
    "steps": int, "peak_memory_bytes": int, "num_parameters": int, "model": str, "data": str,
}  # fmt: skip


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl.

    Raises:  UsageError: if there is none, or a line is not as verydeep wrote it.
    """
    if not (path / METRICS).exists():
        raise UsageError(f"run {path}: no {METRICS} there")
    return [_values_of(line, path / METRICS) for line in _complete_lines(path / METRICS)]


def _values_of(line: str, path: Path) -> dict[str, Any]:
    with suppress(ValueError):
        values = parse_json(line)
        if isinstance(values, dict) and isinstance(values.get("step"), int) and isinstance(values.get("kind"), str):
            return values
    raise UsageError(f"{path}: is not as verydeep wrote it: {line.strip()[:60]!r}; mend or delete the line")


def _complete_lines(path: Path) -> list[str]:
    """The lines of a file that end in a newline; a killed process may leave half a line."""
    if not path.exists():
        return []
    text = path.read_text(errors="surrogateescape")
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
