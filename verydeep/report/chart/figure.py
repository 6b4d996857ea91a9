"""A figure as data: a Vega-Lite specification with its name, title and caption; what all charts have in common."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from verydeep.errors import UsageError
from verydeep.files import json_text
from verydeep.report.number import is_number

Row = dict[str, Any]
Rows = Sequence[Mapping[str, Any]]

HEIGHT = 300  # of a plot; its width is its container's
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True)
class Chart:
    """One figure.

    Args:    name: what its files are called, without suffix
             title: one line
             caption: settings and seeds, in words
             spec: Vega-Lite, with its data; without a theme, which the page adds

    Raises:  UsageError: if the name is no plain file name.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"chart {self.name!r}: must be a file name of at most 100 letters, digits and . _ + -")

    def to_dict(self) -> dict[str, Any]:
        """JSON values, from which `from_dict` makes the same chart."""
        return {"name": self.name, "title": self.title, "caption": self.caption, "spec": self.spec}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Chart":
        """The chart that `to_dict` gave.

        Raises:  UsageError: if a part is missing or of another type.
        """
        for part, kind in (("name", str), ("title", str), ("caption", str), ("spec", dict)):
            if not isinstance(values.get(part), kind):
                raise UsageError(f"chart {values.get('name')!r}: {part} must be a {kind.__name__}")
        return Chart(values["name"], values["title"], values["caption"], values["spec"])


def altair_chart(drawing: alt.TopLevelMixin, *, name: str, title: str, caption: str | Sequence[str] = "") -> Chart:
    """The figure of any Altair chart; what is not finite in its data becomes null, a list of sentences one caption.

    >>> points = alt.Chart(alt.InlineData(values=[{"x": 1}])).mark_point().encode(x="x:Q")
    >>> altair_chart(points, name="fig1", title="Points").spec["encoding"]
    {'x': {'field': 'x', 'type': 'quantitative'}}
    """
    with alt.data_transformers.enable("default", consolidate_datasets=False):
        spec = drawing.to_dict()  # checked against the schema of Vega-Lite
    spec.pop("config", None)
    sentences = [caption] if isinstance(caption, str) else caption
    text = " ".join(sentence.strip() for sentence in sentences if sentence.strip())
    return Chart(name, title, text, json.loads(json_text(spec)))


def layers_of(*layers: Any, height: int = HEIGHT) -> Any:
    """Layers in one plot, as wide as its container."""
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return alt.layer(*layers).properties(width="container", height=height, autosize=fit)


def own_names(rows: Rows, fields: Mapping[str, str | None], **constants: Any) -> list[Row]:
    """The rows under the charts' own column names: a dot or bracket in a name would be a path in Vega.

    Args:    fields: own name -> the caller's, or None for a column of empty words
    """

    def value(row: Mapping[str, Any], own: str, name: str | None) -> Any:
        found = "" if name is None else row[name]
        return str(found) if own in ("series", "category", "panel") else found  # a depth, say, is a name here

    return [{own: value(row, own, name) for own, name in fields.items()} | constants for row in rows]


def drawable(rows: Sequence[Row], logs: Mapping[str, bool]) -> tuple[list[Row], str]:
    """The rows that have a place on all axes, and a sentence on those that have none, empty if there are none.

    Args:    logs: field -> whether its axis is logarithmic

    >>> drawable([{"x": 1.0, "y": 0.0}, {"x": 2.0, "y": 3.0}], {"x": False, "y": True})
    ([{'x': 2.0, 'y': 3.0}], 'Not drawn: 1 of 2 points, not finite or not above 0.')
    """
    kept = [row for row in rows if all(is_number(row[key]) and (row[key] > 0 or not log) for key, log in logs.items())]
    if len(kept) == len(rows):
        return kept, ""
    why = "not finite or not above 0" if any(logs.values()) else "not finite"
    return kept, f"Not drawn: {len(rows) - len(kept)} of {len(rows)} points, {why}."


def tooltip(**titles: str) -> list[alt.Tooltip]:
    """What a point says of itself: numbers x, y, value, low, high; any other field is words."""
    numbers = ("x", "y", "value", "low", "high", "n")
    return [
        alt.Tooltip(f"{field}:Q", title=title, format=",.4~g")
        if field in numbers
        else alt.Tooltip(f"{field}:N", title=title)
        for field, title in titles.items()
        if title
    ]
