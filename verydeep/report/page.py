"""Sections to one HTML page that needs nothing beside it, and to an image file for each figure."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from verydeep.errors import RunError, UsageError
from verydeep.files import json_text, write_whole
from verydeep.report import draw, theme
from verydeep.report.chart.figure import Chart
from verydeep.report.number import NOTHING, is_number, number_text, value_text
from verydeep.report.section import NOT_RUN, VERDICTS, Cell, Section, Table, counts

MARKS = {"holds": "✓", "fails": "✗", "not run": NOTHING}
VERBS = {"holds": ("holds", "hold"), "fails": ("fails", "fail"), "not run": ("not run", "not run")}


def render_page(title: str, intro: str, sections: Sequence[Section], out: Path, facts: Mapping[str, Any]) -> list[Path]:
    """Write the page to `out`, and each figure as SVG and PNG to the folder `<stem>_files` beside it.

    The same arguments give the same bytes.

    Args:    intro: what the page is about; an empty line between paragraphs
             facts: for the foot: command, versions, seconds, seeds; a mapping is shown as its entries
    Returns: the files written, the page first
    Raises:  UsageError: if two figures have one name, or one cannot be drawn.
             RunError: if a file cannot be written.
    """
    charts = [chart for section in sections for chart in section.charts]
    _check_names(charts)
    page = page_html(title, intro, sections, facts)
    files = out.with_name(f"{out.stem}_files")
    try:
        (files if charts else out.parent).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{files}: cannot be made ({error.strerror})") from None
    written = [out]
    for chart in charts:
        alone = draw.svg(chart, titled=True)
        for suffix, content in (("svg", alone), ("png", draw.png(alone))):
            written.append(files / f"{chart.name}.{suffix}")
            write_whole(written[-1], content)
    write_whole(out, page)
    return written


def page_html(title: str, intro: str, sections: Sequence[Section], facts: Mapping[str, Any]) -> str:
    """The page as text."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("verydeep.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"paragraphs": _paragraphs, "anchor": _anchors(), "breakable": _breakable}
    environment.tests["number"] = is_number
    charted = any(section.charts for section in sections)
    scripts = [Markup(draw.javascript())] if charted else []
    scripts.append(Markup(environment.get_template("page.js").render()))
    cells = [cell for section in sections for cell in section.cells]
    return environment.get_template("page.html").render(
        title=title,
        intro=intro,
        sections=[_section_view(section) for section in sections],
        counts=counts(cells),
        num_claims=len(cells),
        verdicts=VERDICTS,
        marks=MARKS,
        verbs=VERBS,
        facts=_facts(facts),
        config=_json(theme.CONFIG | {"font": "system-ui, sans-serif"}),
        dark=Markup(theme.dark_css()),
        scripts=scripts,
        policy=_policy(scripts),
    )


def _check_names(charts: Iterable[Chart]) -> None:
    seen: set[str] = set()
    for chart in charts:
        if chart.name.lower() in seen:
            raise UsageError(f"chart {chart.name!r}: two figures have this name, which is their file's too")
        seen.add(chart.name.lower())


def _policy(scripts: Iterable[Markup]) -> str:
    """What a browser may do with the page: nothing from a network, no script but the page's own."""
    hashes = [base64.b64encode(hashlib.sha256(str(script).encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _section_view(section: Section) -> dict[str, Any]:
    return {
        "section": section,
        "counts": counts(section.cells),
        "cells": [_cell_view(cell) for cell in section.cells],
        "compared": any(cell.get("difference") is not None for cell in section.cells),
        "tables": [_table_view(table) for table in section.tables],
        "charts": [
            {"chart": chart, "still": Markup(_image(draw.svg(chart))), "spec": _json(chart.spec)}
            for chart in section.charts
        ],
    }


def _table_view(table: Table) -> dict[str, Any]:
    def view(value: Any) -> dict[str, Any]:
        text = NOTHING if value is None else str(value) if isinstance(value, str) else value_text(value)
        return {"text": text, "order": value if is_number(value) else text}

    return {
        "title": table.title,
        "columns": table.columns,
        "rows": [[view(cell) for cell in row] for row in table.rows],
    }


def _image(svg: str) -> str:
    """An SVG that shrinks with its container and that screen readers pass over: its figure has the words."""
    return svg.replace("<svg ", '<svg aria-hidden="true" ', 1)


def _cell_view(cell: Cell) -> dict[str, Any]:
    unit, interval, n = str(cell.get("unit") or ""), cell.get("interval"), cell.get("n") or 0
    measured = [] if cell["verdict"] == NOT_RUN else cell.get("measured") or []
    spread = f"{value_text(interval[0])} to {value_text(interval[1])}" if interval else ""
    mean, std = cell.get("mean"), cell.get("std")
    # Two digits of a standard deviation are more than five seeds know.
    around = f"mean {value_text(mean)} ± {number_text(float(f'{std:.2g}'))}" if is_number(std) else ""
    return {name: str(cell.get(name) or "") for name in ("id", "claim", "quantity", "detail", "verdict")} | {
        "published": value_text(cell.get("published"), unit=unit),
        "measured": _measured(measured, cell.get("median"), unit),
        "order": cell.get("median"),
        "n": n,
        "interval": spread,
        "difference": _difference(cell.get("difference")),
        "facts": [fact for fact in (spread, around) if fact],
    }


def _measured(values: Sequence[Any], median: Any, unit: str) -> str:
    """The median; of what has none, the value that all seeds gave, or the first of several.

    >>> _measured([6.5, 6.6, 6.9], 6.6, "percent"), _measured([[1, 2]], None, ""), _measured([True, False], None, "")
    ('6.6\\xa0%', '1, 2', 'yes, and 1 other')
    """
    if values and median is not None:
        return value_text(median, unit=unit)
    texts = list(dict.fromkeys(value_text(value, unit=unit) for value in values))
    if len(texts) < 2:
        return texts[0] if texts else NOTHING
    return f"{texts[0]}, and {len(texts) - 1} other{'s' if len(texts) > 2 else ''}"


def _difference(value: Any) -> str:
    """A difference with its sign, of a row by column."""
    numbers = value if isinstance(value, list) else [value]
    return ", ".join(f"{number:+.2f}" for number in numbers if is_number(number)) or NOTHING


def _facts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    def text(value: Any) -> str:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {item}" for name, item in value.items())
        return value_text(value)

    return [(str(name).replace("_", " "), text(value)) for name, value in facts.items()]


def _json(values: Any) -> Markup:
    """JSON that may stand in a script element: no `<` in it, so no end tag."""
    return Markup(json_text(values).replace("<", "\\u003c"))


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _breakable(name: str) -> Markup:
    """A name that a line may break after a slash, an underscore or a dash.

    >>> _breakable("a/b_c")
    Markup('a/<wbr>b_<wbr>c')
    """
    return Markup("<wbr>").join(re.split(r"(?<=[/_-])", name))


def _anchors() -> Any:
    """A filter that gives each (kind, name) its own id, made of the name's letters and digits."""
    given: dict[tuple[str, str], str] = {}

    def anchor(name: str, kind: str) -> str:
        if (kind, name) not in given:
            stem = f"{kind}-" + "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)
            taken = sum(known == stem or known.startswith(f"{stem}--") for known in given.values())
            given[kind, name] = f"{stem}--{taken + 1}" if taken else stem
        return given[kind, name]

    return anchor
