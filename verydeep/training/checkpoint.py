"""Checkpoints: saved atomically, checked when read, with the one before kept to fall back on.

`checkpoints/last.pt` loads at any moment: a new one is written beside it under a temporary name, brought to disk, and
renamed over it. Contents are tensors and plain values, read with `weights_only=True`.
"""

import io
import os
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from verydeep.errors import RunError, first_line

LAST, PREVIOUS, BEST = "last.pt", "previous.pt", "best.pt"


def save_checkpoint(directory: Path, values: dict[str, Any], *, name: str = LAST) -> None:
    """Write `directory/name`; the old `last.pt` becomes `previous.pt`.

    Raises:  RunError: if the disk is full or not writable; what was there before stays as it was.
    """
    directory.mkdir(parents=True, exist_ok=True)
    temporary = directory / f"{name}.tmp{os.getpid()}"
    try:
        buffer = io.BytesIO()
        torch.save(values, buffer)  # into memory first: torch words a failed write in its own way
        with temporary.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        if name == LAST and (directory / LAST).exists():
            _keep_previous(directory)
        temporary.replace(directory / name)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        left = "the one before is intact" if (directory / name).exists() else "there is none yet"
        raise RunError(f"checkpoint {directory / name}: cannot be written ({_reason(error)}); {left}") from None


def load_checkpoint(directory: Path, *, name: str = LAST) -> tuple[dict[str, Any], str | None] | None:
    """The newest checkpoint that can be read, and what was wrong with the one passed over; None if there is none.

    Where `previous.pt` stands in for a damaged `last.pt` it takes its place, so that the next save keeps it.

    Raises:  RunError: if there are checkpoints and none can be read.
    """
    names = [name, PREVIOUS] if name == LAST else [name]
    faults: list[str] = []
    for path in (directory / candidate for candidate in names):
        if not path.exists():
            continue
        fault = damage(path)
        if fault is None:
            values = _read(path)
            if path.name != name:
                path.replace(directory / name)
            return values, "; ".join(faults) or None
        faults.append(f"checkpoint {path} is damaged ({fault})")
    if faults:
        raise RunError("; ".join(faults) + "; none is left to go on from")
    return None


def has_checkpoint(directory: Path) -> bool:
    """Whether a run has saved a checkpoint, damaged or not."""
    return any((directory / name).exists() for name in (LAST, PREVIOUS))


def _read(path: Path) -> dict[str, Any]:
    try:
        values = read_tensors(path)
    except ValueError as error:
        raise RunError(f"checkpoint {path}: {error}") from None
    if not isinstance(values, dict):
        raise RunError(f"checkpoint {path}: holds {type(values).__name__}; it is not as verydeep wrote it")
    return values


def read_tensors(path: Path) -> Any:
    """What torch.save wrote to a file, tensors and plain values. Nothing in it is executed.

    Raises:  ValueError: if it cannot be read or holds more, in one line.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's doubts about pickles that it goes on to refuse
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise ValueError(
                "refused, it holds more than tensors and plain values, or is no file of torch.save"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # a file of any bytes may make an unpickler do anything
            raise ValueError(f"cannot be read as a file of torch.save ({_reason(error)})") from None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint file; None if every byte is as it was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except MemoryError:
        raise
    except Exception as error:  # of an archive whose directory is damaged, any
        return _reason(error)
    return f"part {broken} fails its checksum" if broken else None


def remove_stale(directory: Path, *names: str) -> None:
    """Delete the temporary files of these names that a killed process left; only for the holder of the run's lock."""
    for name in names:
        for path in directory.glob(f"{name}.tmp*"):
            path.unlink(missing_ok=True)


def _keep_previous(directory: Path) -> None:
    """Give the last checkpoint its second name, without a moment at which the first is missing."""
    spare = directory / f"{PREVIOUS}.tmp{os.getpid()}"
    spare.unlink(missing_ok=True)
    try:
        os.link(directory / LAST, spare)
    except OSError:  # a file system without hard links
        shutil.copyfile(directory / LAST, spare)
    spare.replace(directory / PREVIOUS)


def _reason(error: Exception) -> str:
    """The first line of an error, in words."""
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
