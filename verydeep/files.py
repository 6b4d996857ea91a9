"""Files written whole or not at all, values as standard JSON, and JSON and YAML read warily. Torch-free."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

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


def parse_json(text: str | bytes) -> Any:
    """What JSON text says.

    Raises:  ValueError: if it is none, or nested too deep for Python.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def parse_yaml(text: str) -> Any:
    """What YAML text says. Nothing in it is executed, repeated by alias or given twice.

    Raises:  ValueError: if it is not such YAML, in one line, naming the line of the text.

    >>> parse_yaml("lr: 0.1")
    {'lr': 0.1}
    """
    try:
        return yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).partition("\n")[0]
        raise ValueError((f"line {mark.line + 1}: " if mark else "") + f"not plain YAML: {problem}") from None


class _PlainLoader(yaml.SafeLoader):
    """The safe loader without aliases, a few of which can stand for gigabytes, and without keys that win silently."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "it holds aliases (*name)", self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (LookupError, TypeError, AttributeError, ValueError):  # of a value that its tag does not suit
            problem = f"{node.value if isinstance(node, yaml.ScalarNode) else 'a value'!r} is no {node.tag}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if str(key.value) in seen:
                problem = f"key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)
