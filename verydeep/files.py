"""Files written whole or not at all, and values as standard JSON. Torch-free."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verydeep.errors import RunError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file beside its place and move it there, so that no reader ever sees half of it.

    Raises:  RunError: if it cannot be written; what was there before stays.
    """
    temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None


def json_text(values: Any, *, indent: int | None = None) -> str:
    """Values as JSON that every reader takes: what is not finite becomes null, a path its text.

    >>> json_text({"loss": float("nan"), "sizes": (1, 2)})
    '{"loss": null, "sizes": [1, 2]}'
    """
    return json.dumps(_plain(values), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
