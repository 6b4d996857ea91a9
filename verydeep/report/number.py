"""Published and measured values as text, the same in tables, figures and tooltips."""

import math
from collections.abc import Mapping
from typing import Any

# What a source gives in place of a number.
WORDS = {"identity": "an identity", "figure": "a figure"}
MINUS, TIMES, NOTHING = "\u2212", "\u00d7", "\u2013"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def value_text(value: Any, *, unit: str = "") -> str:
    """A value of a claim as people write it: four significant digits, whole numbers in full up to a thousand million.

    Args:    value: what JSON holds; None is the source's `fail`
             unit: written behind a number; `percent` as its sign

    >>> value_text(0.136083), value_text(9.5367e-07), value_text(8e15), value_text(1e15)
    ('0.1361', '9.537\\xa0×\\xa010⁻⁷', '8\\xa0×\\xa010¹⁵', '10¹⁵')
    >>> value_text(1179648), value_text(25600000.0), value_text(1490.26), value_text(2**50)
    ('1,179,648', '25,600,000', '1,490', '1.126\\xa0×\\xa010¹⁵')
    >>> value_text([-1.3416, 0, 1.3416])
    '−1.342, 0, 1.342'
    >>> value_text([[0, -1.2247], [1, 2]])
    '(0,\\xa0−1.225), (1,\\xa02)'
    >>> value_text({"median": 4.92, "mean": 4.89, "std": 0.14}), value_text({"top-1": 20.7, "top-5": 5.3})
    ('4.92 (4.89 ± 0.14)', 'top-1 20.7, top-5 5.3')
    >>> value_text(6.61, unit="percent"), value_text(27, unit="hours")
    ('6.61\\xa0%', '27\\xa0hours')
    >>> value_text("identity"), value_text("conv1x1"), value_text(True), value_text(None), value_text([])
    ('an identity', 'conv1x1', 'yes', 'fail', '–')
    """  # noqa: RUF002
    match value:
        case None:
            return "fail"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            # A no-break space: the unit stays with its number.
            return number_text(value) + (f"\u00a0{'%' if unit == 'percent' else unit}" if unit else "")
        case list() | tuple():
            return ", ".join(_row_text(item) if _is_list(item) else value_text(item) for item in value) or NOTHING
        case {"median": median, "mean": mean, "std": std}:
            return f"{value_text(median, unit=unit)} ({value_text(mean)} ± {value_text(std)})"
        case Mapping():
            return ", ".join(f"{name} {value_text(item)}" for name, item in value.items()) or NOTHING
    return WORDS.get(str(value), str(value))


def number_text(value: float) -> str:
    """Four significant digits, powers of ten beyond 10^9 and below 10^-3.

    >>> [number_text(value) for value in (0.0, -0.00012345, 0.001, 99999.6, 1e9, float("inf"), float("nan"))]
    ['0', '−1.234\\xa0×\\xa010⁻⁴', '0.001', '100,000', '10⁹', '∞', 'not a number']
    """  # noqa: RUF002
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    sign, size = (MINUS if value < 0 else ""), abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        digits, exponent = f"{size:.3e}".split("e")
        digits = digits.rstrip("0").rstrip(".")
        power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
        return sign + (power if digits == "1" else f"{digits}\u00a0{TIMES}\u00a0{power}")
    size = size if float(size).is_integer() else float(f"{size:.4g}")
    return sign + (f"{int(size):,}" if float(size).is_integer() else f"{size:.4g}")


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and neither yes nor no.

    >>> [is_number(value) for value in (1, 2.5, True, "1", None, float("nan"))]
    [True, True, False, False, False, False]
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _row_text(row: Any) -> str:
    """A row of a matrix, in which no line breaks."""
    return f"({value_text(row)})".replace(" ", "\u00a0")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
