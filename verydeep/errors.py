"""The two ways in which verydeep refuses, and the look-up of names that explains itself.

Everything that a user can get wrong raises `UsageError` (exit code 2); a run that was well asked for
and could not be done raises `RunError` (exit code 1). Both carry one line. Torch-free.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


class UsageError(ValueError):
    """An argument breaks a rule: one line naming argument, value, rule and the nearest value that would do."""


class RunError(RuntimeError):
    """Work that was well specified failed: one line naming what, where and what is left intact."""


class Diverged(RunError):
    """A run was stopped for its non-finite steps: what was trained does not train."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's text; the name of its type where it has none.

    >>> first_line(ValueError("three\\nlines\\nof it")), first_line(KeyError())
    ('three', 'KeyError')
    """
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def described(error: BaseException) -> str:
    """The type of an exception and the first line of its text.

    >>> described(ValueError("three\\nlines\\nof it")), described(KeyError())
    ('ValueError: three', 'KeyError')
    """
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


def is_out_of_memory(error: Exception) -> bool:
    """Whether an exception is the refusal of memory, which torch words in several ways."""
    texts = ("can't allocate memory", "not enough memory", "out of memory", "calculation overflowed")
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


def canonical(name: str) -> str:
    """Letters and digits of a name in lower case, so that `zero-init`, `zero_init` and `ZeroInit` are one.

    >>> canonical("Zero-Init")
    'zeroinit'
    """
    return "".join(character for character in name.lower() if character.isalnum())


def nearest(name: str, names: Iterable[str], *, count: int = 3) -> list[str]:
    """The names most like `name`, best first; all of them when there are few and none is alike.

    >>> nearest("bacth", ["batch", "layer", "group"])
    ['batch']
    """
    names = list(names)
    found = difflib.get_close_matches(name, names, n=count, cutoff=0.5)
    return found or names[:8]


def resolve_name(kind: str, name: str, names: Iterable[str]) -> str:
    """The member of `names` that `name` means, whatever its case, hyphens or underscores.

    Raises:  UsageError: if there is none, naming the nearest.

    >>> resolve_name("scale", "zero-init", ["none", "zero_init"])
    'zero_init'
    """
    names = list(names)
    if name in names:
        return name
    matches = [known for known in names if canonical(known) == canonical(name)]
    if len(matches) == 1:
        return matches[0]
    raise UsageError(f"{kind} {name!r}: unknown; nearest: {', '.join(nearest(name, names))}")


def resolve(kind: str, name: str, table: Mapping[str, T]) -> T:
    """The value in `table` that `name` means; see `resolve_name`."""
    return table[resolve_name(kind, name, table)]
