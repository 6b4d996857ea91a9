"""Directives whose tables are made from the code and from `results/` at each build, so that they cannot go stale.

{flags} VERB              the flags of a verb, by group
{verbs}                   all verbs
{protocols}               what each protocol declares
{rules}                   the rules of diagnose
{cells} FILE              a reproduction: published beside measured
{measured} FILE           the values that the lines of its body name: `label = key.key`
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from verydeep.cli import VERBS
from verydeep.config import PROTOCOLS
from verydeep.flags import KINDS, Flag
from verydeep.report.number import NOTHING, value_text
from verydeep.size import format_size
from verydeep_docs.rule import RuleText, rule_texts

ROOT = Path(__file__).parents[2]


def text_nodes(text: str) -> list[nodes.Node]:
    """Text, in which `code` is a literal."""
    parts = re.split(r"`([^`]+)`", text)
    return [nodes.literal(text=part) if odd % 2 else nodes.Text(part) for odd, part in enumerate(parts) if part]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> nodes.table:
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    group += [nodes.thead("", _row(head)), nodes.tbody("", *map(_row, rows))]
    return nodes.table("", group, classes=["colwidths-auto"])


def _row(cells: Sequence[str]) -> nodes.row:
    row = nodes.row()
    for cell in cells:
        row += nodes.entry("", *(nodes.paragraph("", "", *text_nodes(line)) for line in cell.splitlines()))
    return row


class Flags(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        shown: list[nodes.Node] = []
        groups = VERBS[self.arguments[0]].flags
        for title, flags in groups.items():
            if len(groups) > 1:
                shown.append(nodes.rubric("", title))
            shown.append(table(["flag", "value", ""], map(_flag_row, flags)))
        return shown


def _flag_row(flag: Flag) -> list[str]:
    value = "" if flag.positional or flag.switch else f"`{flag.metavar or KINDS[flag.kind][0]}`"
    return [f"`{flag.spelling}`", value, flag.help + ("; required" if flag.required else "")]


class Verbs(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        rows = [[f"`verydeep {name}`", verb.function.__doc__ or ""] for name, verb in VERBS.items()]
        return [table(["verb", ""], rows)]


class Protocols(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        fields = dict.fromkeys(name for protocol in PROTOCOLS.values() for name in protocol)
        rows = [[f"`{name}`", *(_declared(p.get(name)) for p in PROTOCOLS.values())] for name in fields]
        return [table(["field", *(f"`{name}`" for name in PROTOCOLS)], rows)]


def _declared(value: Any) -> str:
    return "" if value is None else value_text(value)


class Rules(SphinxDirective):
    """A section for each rule, so that one can be linked to."""

    def run(self) -> list[nodes.Node]:
        return [_rule_section(rule) for rule in rule_texts()]


def _rule_section(rule: RuleText) -> nodes.section:
    section = nodes.section(ids=[rule.name], names=[rule.name])
    section += nodes.title(text=rule.name)
    fields = {
        "Severity": [" or ".join(rule.severities)],
        "Why": rule.whys,
        "Change": rule.remedies,
        "Source": rule.sources,
    }
    listed = nodes.field_list()
    for name, texts in fields.items():
        paragraphs = [nodes.paragraph("", "", *text_nodes(text)) for text in texts]
        listed += nodes.field("", nodes.field_name(text=name), nodes.field_body("", *paragraphs))
    section += listed
    return section


class Results(SphinxDirective):
    """What reads a file of results, named from the root of the repository."""

    required_arguments = 1

    def read(self) -> dict[str, Any]:
        file = ROOT / self.arguments[0]
        self.env.note_dependency(str(file))
        return json.loads(file.read_text(encoding="utf-8"))

    def origin(self, values: dict[str, Any]) -> nodes.paragraph:
        return nodes.paragraph("", "", *text_nodes(f"`{self.arguments[0]}`, printed by `{values['command']}`"))


class Cells(Results):
    def run(self) -> list[nodes.Node]:
        values = self.read()
        rows = [_cell_row(cell) for cell in values["cells"]]
        return [table(["claim", "published", "measured", "n", "verdict"], rows), self.origin(values)]


def _cell_row(cell: dict[str, Any]) -> list[str]:
    """The median; of what has none, the value itself."""
    value = next(iter(cell["measured"]), None) if cell["median"] is None else cell["median"]
    measured = NOTHING if value is None else value_text(value)
    if value is not None and cell["quantity"] != "value":
        measured += f"\n{cell['quantity']}"
    return [cell["what"], value_text(cell["published"]), measured, str(cell["n"]), cell["verdict"]]


class Measured(Results):
    has_content = True

    def run(self) -> list[nodes.Node]:
        values = self.read()
        rows = []
        for line in self.content:
            label, _, path = line.partition(" = ")
            value: Any = values
            for key in path.split("."):
                value = value[key]
            rows.append([label, format_size(int(value)) if path.endswith("bytes") else value_text(value)])
        return [table(["", "measured"], rows), self.origin(values)]


def setup(app: Sphinx) -> dict[str, bool]:
    for directive in (Flags, Verbs, Protocols, Rules, Cells, Measured):
        app.add_directive(directive.__name__.lower(), directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
