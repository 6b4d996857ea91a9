"""What each rule of `diagnose` can say, read from its source: severities, reasons, remedies, sources."""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from verydeep.analysis.finding import SEVERITIES, Finding
from verydeep.analysis.rule import RULES

_PLACES = [field.name for field in fields(Finding)]


@dataclass(frozen=True)
class RuleText:
    """One rule: all severities, reasons, remedies and sources that its findings may have; a number is shown as N."""

    name: str
    severities: list[str]
    whys: list[str]
    remedies: list[str]
    sources: list[str]


def rule_texts() -> list[RuleText]:
    return [_rule_text(name, function) for name, function in RULES.items()]


def _rule_text(name: str, function: Callable[..., Any]) -> RuleText:
    texts = {place: dict.fromkeys(_texts(function, place)) for place in ("severity", "why", "remedy", "source")}
    severities = [severity for severity in SEVERITIES if severity in texts["severity"]]
    return RuleText(name, severities, list(texts["why"]), list(texts["remedy"]), list(texts["source"]))


def _texts(function: Callable[..., Any], place: str) -> Iterator[str]:
    """What the findings made in this function, and in those of its module that it calls, have in this place.

    A function may also give back evidence, why and remedy, for its caller to make the finding of.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    known = function.__globals__
    for node in ast.walk(tree):
        match node:
            case ast.Return(value=ast.Tuple(elts=[_, why, remedy])) if place in ("why", "remedy"):
                yield from _values(why if place == "why" else remedy, tree, known)
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]:
        called = known.get(call.func.id)
        if called is Finding:
            given = dict(zip(_PLACES, call.args, strict=False)) | {word.arg: word.value for word in call.keywords}
            yield from _values(given[place], tree, known)
        elif inspect.isfunction(called) and called.__module__ == function.__module__ and called is not function:
            yield from _texts(called, place)


def _values(node: ast.expr, tree: ast.Module, known: dict[str, Any]) -> list[str]:
    """The strings that an expression may have, names being those of the function or of its module."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.IfExp(body=body, orelse=other):
            return _values(body, tree, known) + _values(other, tree, known)
        case ast.JoinedStr(values=parts):
            return ["".join(_part(part, tree, known) for part in parts)]
        case ast.Name(id=name):
            given = [text for value in _assigned(name, tree) for text in _values(value, tree, known)]
            return given or ([known[name]] if isinstance(known.get(name), str) else [])
        case _:
            return []


def _part(part: ast.expr, tree: ast.Module, known: dict[str, Any]) -> str:
    if isinstance(part, ast.FormattedValue):
        return (_values(part.value, tree, known) or ["N"])[0]
    return str(part.value) if isinstance(part, ast.Constant) else "N"


def _assigned(name: str, tree: ast.Module) -> list[ast.expr]:
    """What the function assigns to a name, in order."""
    values = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        if node.value and any(isinstance(target, ast.Name) and target.id == name for target in targets):
            values.append(node.value)
    return values
