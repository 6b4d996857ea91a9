"""The package's docstrings as reStructuredText: sections become fields, text is shown as it was written.

A docstring's sections begin in the first column (`Args:    x: meaning`), an item's further lines are indented. Between
backticks stands code, doctests and indented paragraphs are kept as they are, and nothing else is markup.
"""

import re
from collections.abc import Iterator
from itertools import groupby

from sphinx.application import Sphinx

SECTIONS = {
    "Args": "Arguments",
    "Shape": "Shape",
    "Returns": "Returns",
    "Raises": "Raises",
    "Source": "Source",
    "Differs": "Differs",
}
_SECTION = re.compile(rf"({'|'.join(SECTIONS)}):\s+(?=\S)")
_NAMED = re.compile(r"(\*?\w+(?:, \*?\w+)*): (.*)", re.DOTALL)
_ITEMIZED = ("Args", "Raises")


def rst(lines: list[str]) -> list[str]:
    """The lines of a docstring as lines of reStructuredText."""
    written: list[str] = []
    for filled, group in groupby(lines, key=lambda line: bool(line.strip())):
        if filled:
            written += [*_paragraph(list(group)), ""]
    return written


def _paragraph(lines: list[str]) -> Iterator[str]:
    if lines[0].startswith(">>>"):
        yield from lines
    elif lines[0].startswith(" "):
        yield from [".. code-block:: text", "", *(f"    {line}" for line in lines)]
    elif _SECTION.match(lines[0]):
        yield from _sections(lines)
    elif _is_equation(lines):
        yield from [".. code-block:: text", "", *(f"    {line}" for line in lines)]
    elif lines[0].startswith("- "):
        yield from (line[:2] + escaped(line[2:]) for line in lines)
    else:
        yield from escaped("\n".join(lines)).splitlines()


def _is_equation(lines: list[str]) -> bool:
    """A paragraph that is no sentence, and says what equals what or becomes what."""
    return not lines[-1].endswith((".", ":")) and any(sign in line for line in lines for sign in (" = ", " -> "))


def _sections(lines: list[str]) -> Iterator[str]:
    starts = [place for place, line in enumerate(lines) if _SECTION.match(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        name = lines[start].partition(":")[0]
        column = _SECTION.match(lines[start]).end()  # type: ignore[union-attr]
        items = _items([" " * column + lines[start][column:], *lines[start + 1 : end]], column)
        if name not in _ITEMIZED:
            items = [" ".join(items)]
        if len(items) == 1 and not _NAMED.match(items[0]):
            yield f":{SECTIONS[name]}: {escaped(items[0])}"
        elif name in _ITEMIZED:
            yield f":{SECTIONS[name]}:"
            yield from (f"    * {_item(item)}" for item in items)
        else:
            yield f":{SECTIONS[name]}: {escaped(items[0])}"


def _items(lines: list[str], column: int) -> list[str]:
    """Lines that begin in `column`, each with the lines below it that are indented further."""
    items: list[str] = []
    for line in lines:
        if items and len(line) - len(line.lstrip()) > column:
            items[-1] += " " + line.strip()
        else:
            items.append(line.strip())
    return items


def _item(text: str) -> str:
    """`name: meaning`, the name as code."""
    named = _NAMED.match(text)
    return f"``{named[1]}``: {escaped(named[2])}" if named else escaped(text)


def escaped(text: str) -> str:
    """Text in which `code` is a literal, and every other sign that reStructuredText reads is a letter."""
    parts = re.split(r"`([^`]+)`", text)
    for place, part in enumerate(parts):
        if place % 2:
            parts[place] = f"``{part}``"
        else:
            plain = re.sub(r"([*|_`\\])", r"\\\1", part)
            parts[place] = "\\ " + plain if place and re.match(r"\w", plain) else plain  # a literal ends before a gap
    return "".join(parts)


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = rst(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
