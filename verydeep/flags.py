"""Flags: declared as data, parsed with jsonargparse, refused on one line. Torch-free; `cli` calls it.

`parse` reads a verb's flags. `read_config` reads a YAML file of `RunConfig` fields by the same types and rules, and
`run_config` puts flags over file. A refusal is a `UsageError` that names the argument, the value and the rule.
"""

import argparse
import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser

from verydeep.config import MOST_FLOAT, MOST_INT, PROTOCOLS, RunConfig, check_text
from verydeep.errors import UsageError, nearest
from verydeep.files import parse_yaml

# base type -> (metavar, rule)
KINDS = {
    int: ("INT", "must be a whole number (int)"),
    float: ("NUMBER", "must be a finite number (float)"),
    bool: ("true|false", "must be true or false (bool)"),
    str: ("TEXT", "must be text (str)"),
    tuple: ("NUMBER,...", "must be numbers separated by commas"),
}

# The groups of `train --help`, each with the field of RunConfig that it begins with.
GROUPS = {
    "model": "what",
    "epochs": "budget",
    "optimizer": "optimisation",
    "order": "network",
    "bn_group_size": "normalisation",
    "image_size": "data",
    "device": "machine and run",
}


class Flag(NamedTuple):
    """One flag or positional argument of a verb.

    Args:    name: as in Python, `batch_size` for `--batch-size`
             default: argparse.SUPPRESS leaves the name out of the result unless it was given
             nargs: of a positional, "+" one or more, "?" at most one
             switch: it takes no value
             least: the smallest legal number
    """

    name: str
    type: Any
    help: str
    default: Any = None
    metavar: str | None = None
    nargs: str | None = None
    positional: bool = False
    required: bool = False
    switch: bool = False
    least: int | None = None

    @property
    def kind(self) -> type:
        """The type without `| None` and item types."""
        inner = typing.get_args(self.type)[0] if _is_optional(self.type) else self.type
        return typing.get_origin(inner) or inner

    @property
    def spelling(self) -> str:
        """`--batch-size`, or RUN for a positional."""
        return self.name.upper() if self.positional else "--" + self.name.replace("_", "-")


def _is_optional(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def config_flags() -> dict[str, list[Flag]]:
    """One flag for each field of `RunConfig`, by group."""
    groups: dict[str, list[Flag]] = {}
    types = typing.get_type_hints(RunConfig)
    for field in dataclasses.fields(RunConfig):
        if field.name in GROUPS:
            group = groups.setdefault(GROUPS[field.name], [])
        metavar = "|".join(field.metadata["choices"]) if "choices" in field.metadata else None
        group.append(Flag(field.name, types[field.name], _config_help(field), argparse.SUPPRESS, metavar))
    return groups


def _config_help(field: dataclasses.Field) -> str:
    text = field.metadata["help"]
    if field.default is not None:
        default = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
        return f"{text}; default: {default.lower() if isinstance(field.default, bool) else default}"
    by_protocol = any(field.name in protocol for protocol in PROTOCOLS.values())
    return f"{text}; default: by protocol" if by_protocol and "default:" not in text else text


def parse(verb: str, description: str, groups: Mapping[str, Sequence[Flag]], argv: Sequence[str]) -> dict[str, Any]:
    """The values of `argv` by flag name.

    Raises:  UsageError: if a flag is unknown, naming the nearest, or a value is missing, not of its type or too small.
             SystemExit: after printing the help.
    """
    flags = [flag for group in groups.values() for flag in group]
    parser = _parser(verb, description, groups)
    if {"-h", "--help"} & set(argv):
        parser.print_help()
        raise SystemExit(0)
    given, positionals = _split(argv, {flag.spelling: flag for flag in flags if not flag.positional})
    _check_complete(flags, given, positionals)
    options = [f"{flag.spelling}={_spell(flag, given[flag.name])}" for flag in flags if flag.name in given]
    separator = ["--"] if any(value.startswith("-") for value in positionals) else []
    try:
        namespace = parser.parse_args([*options, *separator, *positionals])
    except argparse.ArgumentError as error:
        raise UsageError(_one_line(error, {f"argument {flag.spelling}": flag for flag in flags}, given)) from error
    values = {flag.name: namespace[flag.name] for flag in flags if flag.name in namespace}
    for flag in flags:
        _check_value(flag, values.get(flag.name))
    return values


def _check_value(flag: Flag, value: Any) -> None:
    called = f"argument {flag.spelling}"
    if flag.kind is int and value is not None:
        if flag.least is not None and value < flag.least:
            raise UsageError(f"{called} {value}: must be at least {flag.least}")
        if value > MOST_INT:
            raise UsageError(f"{called} {value}: must be at most {MOST_INT}")
    if flag.kind is float and value is not None and not abs(value) <= MOST_FLOAT:
        rule = f"at most {MOST_FLOAT}" if math.isfinite(value) else "a finite number"
        raise UsageError(f"{called} {value}: must be {rule}")
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            check_text(called, text)


def _parser(verb: str, description: str, groups: Mapping[str, Sequence[Flag]]) -> ArgumentParser:
    parser = ArgumentParser(
        prog=f"verydeep {verb}",
        usage=f"verydeep {verb} " + " ".join([*_usage(groups), "[flags]"]),
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
        default_env=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=30),  # type: ignore[arg-type]
    )
    for title, flags in groups.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            options: dict[str, Any] = {"type": flag.type, "help": flag.help.replace("%", "%%")}
            if flag.positional:
                options |= {"metavar": flag.spelling} | ({"nargs": flag.nargs} if flag.nargs else {})
                options |= {"default": flag.default} if flag.nargs == "?" else {}
                group.add_argument(flag.name, **options)
            else:
                metavar = "" if flag.switch else flag.metavar or KINDS[flag.kind][0]
                options |= {"metavar": metavar, "default": flag.default, "required": flag.required}
                group.add_argument(flag.spelling, **options)
    return parser


def _usage(groups: Mapping[str, Sequence[Flag]]) -> list[str]:
    parts = []
    for flag in (flag for group in groups.values() for flag in group):
        if flag.positional:
            parts.append({"+": f"{flag.spelling} ...", "?": f"[{flag.spelling}]"}.get(flag.nargs or "", flag.spelling))
        elif flag.required:
            parts.append(f"{flag.spelling} {flag.metavar or KINDS[flag.kind][0]}")
    return parts


def _split(argv: Sequence[str], known: Mapping[str, Flag]) -> tuple[dict[str, str], list[str]]:
    """The texts of the flags by name, and the positionals, in whatever order they stand.

    What follows a flag is its value, even a negative number; `--batch_size` is `--batch-size`; `--` ends the flags.
    """
    given: dict[str, str] = {}
    positionals: list[str] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if token == "--":
            return given, positionals + rest
        if not token.startswith("--"):
            positionals.append(token)
            continue
        name, equals, value = token.partition("=")
        flag = known.get(name.replace("_", "-"))
        if flag is None:
            alike = [spelling for spelling in known if spelling.startswith(name)] or nearest(name, known)
            raise UsageError(f"argument {name}: unknown; nearest: {', '.join(alike)}")
        if not equals and not flag.switch and rest and not rest[0].startswith("--"):
            value = rest.pop(0)
        elif not equals and flag.kind is bool:
            value = "true"
        elif not equals:
            raise UsageError(f"argument {flag.spelling}: needs a value, which {KINDS[flag.kind][1]}")
        given[flag.name] = value
    return given, positionals


def _check_complete(flags: Sequence[Flag], given: Mapping[str, str], positionals: Sequence[str]) -> None:
    places = [flag for flag in flags if flag.positional]
    missing = [flag.spelling for flag in flags if flag.required and flag.name not in given]
    missing += [flag.spelling for flag in places if flag.nargs != "?"][len(positionals) :]
    if missing:
        raise UsageError(f"argument {missing[0]}: required")
    if len(positionals) > len(places) and not any(flag.nargs == "+" for flag in places):
        raise UsageError(f"argument {positionals[len(places)]!r}: unexpected; a flag begins with --")


def _spell(flag: Flag, text: str) -> str:
    """The text of a value as YAML: `0.5,0.75` is a list, `none` is null except where it is a name."""
    if flag.kind is not str and text.lower() in ("none", "null"):
        return "null"
    if flag.kind is tuple and not text.startswith("["):
        return f"[{text}]"
    return text.lower() if flag.kind is bool else text


def _one_line(error: Exception, flags: Mapping[str, Flag], values: Mapping[str, Any]) -> str:
    """jsonargparse's many lines as one: the argument, by what it is called in `flags`, its value, the rule."""
    first, *rest = str(error).splitlines()
    for called, flag in flags.items():
        if flag.name in values and f'key "{flag.name}"' in first:
            return f"{called} {values[flag.name]!r}: {KINDS[flag.kind][1]}"
    return " ".join([first, *map(str.strip, rest)])


def read_config(path: str) -> dict[str, Any]:
    """The fields of `RunConfig` that the YAML file sets, as their types. Nothing in the file is executed.

    Raises:  UsageError: if it cannot be read, is no mapping, or has an unknown key or a value of the wrong type.
    """
    where = f"config {path}: "
    try:
        with open(path, encoding="utf-8") as file:
            values = parse_yaml(file.read())
    except OSError as error:
        raise UsageError(f"argument --config {path!r}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}must be YAML text in UTF-8") from error
    except ValueError as error:
        raise UsageError(f"{where}{error}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{where}must be a mapping of fields to values, not a {type(values).__name__}")
    return _typed(values, where)


def _typed(values: dict[Any, Any], where: str) -> dict[str, Any]:
    groups = config_flags()
    flags = {flag.name: flag for group in groups.values() for flag in group}
    spelled = {}
    for name, value in values.items():
        if name not in flags:
            raise UsageError(f"{where}key {name!r}: unknown; nearest: {', '.join(nearest(str(name), flags))}")
        flag = flags[name]
        if value is None and not _is_optional(flag.type):
            raise UsageError(f"{where}{name} null: {KINDS[flag.kind][1]}")
        is_text = isinstance(value, str) or (flag.kind is tuple and isinstance(value, (int, float)))
        spelled[name] = _spell(flag, str(value)) if is_text else value
    try:
        namespace = _parser("train", "", groups).parse_object(spelled)
    except argparse.ArgumentError as error:
        called = {where + name: flag for name, flag in flags.items()}
        raise UsageError(_one_line(error, called, values)) from error
    return {name: namespace[name] for name in spelled}


def run_config(flags: Mapping[str, Any], path: str | None = None) -> tuple[RunConfig, dict[str, Any]]:
    """The run that the flags over the file at `path` declare, and the fields that the two set explicitly.

    `--steps` overrides the file's `epochs`, and `--epochs` its `steps`.

    Raises:  UsageError: if a value breaks its field's rule, naming the flag or the file that set it.
    """
    fields = read_config(path) if path else {}
    if ".py:" in str(fields.get("model")) and "model" not in flags:
        raise UsageError(
            f"config {path}: model {fields['model']!r} is code; a file never names code to run, --model does"
        )
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if flags.get(one) is not None:
            fields.pop(other, None)
    fields |= flags
    try:
        return RunConfig(**fields), fields
    except UsageError as error:
        name, _, rest = str(error).partition(" ")
        if name in flags:
            raise UsageError(f"argument --{name.replace('_', '-')} {rest}") from error
        raise UsageError(f"config {path}: {error}" if name in fields else str(error)) from error
