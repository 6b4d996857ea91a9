"""`Replay`: modules run a second time as if it were the first, so that a recomputation is seen by nobody.

Buffers are those that the first run began with, and what the second does to them is dropped. Of the hooks, those that
changed a value take part again, being part of the computation; those that only looked are not called. Torch's
checkpoint puts back the random generators and autocast.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

Table = dict[Any, Any]
Contents = dict[int, tuple[Table, Table]]

_CALLED = ("_forward_pre_hooks", "_forward_hooks")
# how the called ones are called; and those that a module may ask for to choose its path, which never fire here
_OTHERS = (
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
)


class Replay:
    """The context of a recomputation; may be entered again and again.

    The modules' first run is within `first`; before it their buffers are copied.

    Args:    modules: all that run, with what is inside them
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._modules = list({id(part): part for module in modules for part in module.modules()}.values())
        self._buffers = _copied({id(module): (module._buffers, module._buffers) for module in self._modules})
        self._hooks: Contents = {}
        self._put_back: list[Contents] = []

    @contextmanager
    def first(self) -> Iterator[None]:
        """Within it, it is noted which hooks there are, and which of them change values."""
        tables = self._hook_tables()
        self._hooks = {id(table): (table, dict(table)) for table, _ in tables if table}
        changed: set[int] = set()
        called = [table for table, is_called in tables if table and is_called]
        for table in called:
            for key, hook in self._hooks[id(table)][1].items():
                table[key] = _watched(hook, changed)
        try:
            yield
        finally:
            for table in called:
                hooks = self._hooks[id(table)][1]
                for key in table.keys() & hooks.keys():  # a hook may have taken itself away
                    table[key] = hooks[key]
                for key, hook in hooks.items():
                    hooks[key] = hook if id(hook) in changed else _nothing

    def __enter__(self) -> None:
        tables = [table for table, _ in self._hook_tables() if table or id(table) in self._hooks]
        now: Contents = {id(table): (table, dict(table)) for table in tables}
        now |= {key: (table, dict(table)) for key, (table, _) in self._buffers.items()}
        self._put_back.append(now)
        _fill(_copied(self._buffers))
        _fill({key: (table, self._hooks[key][1] if key in self._hooks else {}) for key, (table, _) in now.items()
               if key not in self._buffers})  # fmt: skip

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _fill(self._put_back.pop())

    def _hook_tables(self) -> list[tuple[Table, bool]]:
        """The dicts that hold hooks, the process's own too, and whether their hooks are called in a forward pass."""
        tables: list[tuple[Table, bool]] = []
        for owner in map(vars, self._modules):
            tables += [(owner[name], name in _CALLED) for name in _CALLED + _OTHERS]
        everywhere = vars(torch.nn.modules.module)
        tables += [(everywhere[f"_global{name}"], name in _CALLED) for name in _CALLED + _OTHERS[1:]]
        return tables


def _fill(contents: Contents) -> None:
    """Give each table its content, the table itself staying the one that handles of hooks refer to."""
    for table, content in contents.values():
        table.clear()
        table.update(content)


def _copied(contents: Contents) -> Contents:
    """The same with every tensor copied; one that stands in two places stays one."""
    copies: dict[int, Tensor] = {}

    def copy(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else copies.setdefault(id(tensor), tensor.detach().clone())

    return {
        key: (table, {name: copy(tensor) for name, tensor in content.items()})
        for key, (table, content) in contents.items()
        if content
    }


def _watched(hook: Callable[..., Any], changed: set[int]) -> Callable[..., Any]:
    """The hook, which is put into `changed` when it returns something or writes into what it is given."""

    def watched(module: nn.Module, *values: Any) -> Any:
        before = _versions(values)
        result = hook(module, *values)
        if result is not None or _versions(values) != before:
            changed.add(id(hook))
        return result

    return watched


def _versions(values: Mapping[str, Any] | tuple[Any, ...]) -> list[int]:
    return [leaf._version for leaf in tree_leaves(values) if isinstance(leaf, Tensor) and not leaf.is_inference()]


def _nothing(*values: Any) -> None:
    """In the place of a hook that only looks: the module is seen to have one, as in the first run."""
