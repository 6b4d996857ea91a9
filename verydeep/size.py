"""Bytes as people write them: `parse_size` reads 2GB, 512MB or 1GiB, `format_size` writes them. Torch-free."""

import math
import re

from verydeep.errors import UsageError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**i for i, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", start=1)}


def parse_size(size: str | int, *, name: str = "budget") -> int:
    """Bytes of a size: a whole number, or text with kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (of 1024).

    Args:    name: what errors call it
    Raises:  UsageError: if it is none of these, or less than a byte.

    >>> parse_size("2GB"), parse_size("1.5 GiB"), parse_size(4096)
    (2000000000, 1610612736, 4096)
    """
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{0,15})?|\.[0-9]{1,15}) ?([a-z]*)", str(size).strip().lower())
    if isinstance(size, bool) or match is None or match[2] not in _UNITS or float(match[1]) * _UNITS[match[2]] < 1:
        raise UsageError(f"{name} {size!r}: must be a number of bytes above 0, such as 2GB, 512MB or 1GiB")
    number, unit = match[1], _UNITS[match[2]]
    return int(number) * unit if number.isdigit() else int(float(number) * unit)


def format_size(size: int) -> str:
    """A number of bytes to three digits, never less than it is, so that what fits into it fits into what is written.

    >>> format_size(1_234_567_890), format_size(999), format_size(99_950_001)
    ('1.24GB', '1kB', '100MB')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit or name == "kB":
            digits = max(0, 3 - len(str(size // unit)))
            scaled = math.ceil(size * 10**digits / unit)
            return f"{scaled / 10**digits:.{digits}f}".rstrip("0").rstrip(".") + name if digits else f"{scaled}{name}"
    raise AssertionError(size)
