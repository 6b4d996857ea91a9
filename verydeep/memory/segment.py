"""Segments of a model that keep only their input and are run again in the backward pass.

A module becomes one by its class alone: parameters, buffers, hooks, names and pickles stay as they are.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils.checkpoint import checkpoint

from verydeep.errors import UsageError, nearest
from verydeep.memory.replay import Replay
from verydeep.memory.system import give_back_above
from verydeep.nn.fused import transformed
from verydeep.nn.unit import ResidualUnit


def recompute(modules: Sequence[nn.Module], call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`call(*args)`, which runs the modules; what it computes is not kept but computed again in the backward pass.

    Gradients, buffers and random states are bit for bit those of the plain call, and hooks see it once. The call is
    plain without gradients, and under tracing, export, functorch transforms, forward-mode differentiation,
    torch-function and dispatch modes, so that these too see it once.

    Source:  Chen et al. 2016
    """
    if _steps_aside(args):
        return call(*args, **kwargs)
    replay = Replay(modules)
    return checkpoint(call, *args, use_reentrant=False, context_fn=lambda: (replay.first(), replay), **kwargs)


def _steps_aside(args: tuple[Any, ...]) -> bool:
    return (
        not torch.is_grad_enabled()
        or transformed()
        or any(isinstance(arg, torch.fx.Proxy) for arg in args)
        or any(not isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack())
    )


class SegmentedSequential(nn.Sequential):
    """`nn.Sequential`, some runs of whose modules are recomputed.

    Args:    segments: (first, end) of each run, in order
             most_bytes: of the process, above which freed memory goes back to the system before a run; None: never
    """

    segments: tuple[tuple[int, int], ...] = ()
    most_bytes: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        modules = list(self)
        begin = 0
        for first, end in self.segments:
            input = _in_turn(modules[begin:first], input)
            run = modules[first:end]
            input = recompute(run, functools.partial(_in_turn, run, most_bytes=self.most_bytes), input)
            begin = end
        return _in_turn(modules[begin:], input)


def add_segment(sequential: nn.Module, first: int, end: int, *, most_bytes: int | None = None) -> None:
    """Recompute the modules from `first` up to `end` of an `nn.Sequential`; they follow all its earlier segments."""
    sequential.__class__ = SegmentedSequential
    assert isinstance(sequential, SegmentedSequential)
    sequential.segments = (*sequential.segments, (first, end))
    sequential.most_bytes = most_bytes


def _in_turn(modules: Iterable[nn.Module], x: Tensor, *, most_bytes: int | None = None) -> Tensor:
    if most_bytes is not None:
        give_back_above(most_bytes)
    for module in modules:
        x = module(x)
    return x


class Checkpointed(nn.Module):
    """Mixed into a module's own class: its whole forward pass is recomputed."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return recompute([self], super().forward, *args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """As an object of the module's own class, which a pickle can name, made checkpointed again."""
        return _new, (_own_class(self),), self.__getstate__()


@functools.cache
def _checkpointed_class(own: type[nn.Module]) -> type[nn.Module]:
    return type(own.__name__, (Checkpointed, own), {"__module__": own.__module__, "__qualname__": own.__qualname__})


def _own_class(module: nn.Module) -> type[nn.Module]:
    return type(module).__mro__[2] if isinstance(module, Checkpointed) else type(module)


def _new(own: type[nn.Module]) -> nn.Module:
    cls = _checkpointed_class(own)  # type: ignore[arg-type]
    return cls.__new__(cls)


def checkpoint_module(module: nn.Module) -> None:
    """Recompute the whole forward pass of a module, in place."""
    if not isinstance(module, Checkpointed):
        module.__class__ = _checkpointed_class(type(module))  # type: ignore[arg-type]


def checkpoint_units(model: nn.Module, units: Any = ResidualUnit) -> list[str]:
    """Recompute each of the given modules, so that a training step keeps only what goes into them. In place.

    Any earlier plan of the model is taken back. `remove_checkpoints` takes back this one.

    Args:    units: a class of modules or a tuple of classes, of which the outermost are taken; or names of modules
    Returns: the names of the modules
    Raises:  UsageError: if there is no such module.
    """
    remove_checkpoints(model)
    classes: tuple[Any, ...] = (units,) if isinstance(units, type) else units if isinstance(units, tuple) else ()
    if classes and all(isinstance(one, type) for one in classes):
        names = outermost(model, classes)
    else:
        names = [units] if isinstance(units, str) else list(units)
    modules = dict(model.named_modules())
    for name in names:
        if name not in modules:
            raise UsageError(f"units {name!r}: no module of {type(model).__name__}; nearest: {_near(name, modules)}")
    if not names:
        found = ", ".join(sorted({type(module).__name__ for module in modules.values()}))
        raise UsageError(f"units {units}: {type(model).__name__} has none; its modules are {found}")
    for name in names:
        checkpoint_module(modules[name])
    return names


def _near(name: str, modules: Iterable[str]) -> str:
    return ", ".join(nearest(str(name), [known for known in modules if known]))


def outermost(model: nn.Module, classes: type | tuple[type, ...]) -> list[str]:
    """The names of the modules of these classes that are in no other of them, in the order of `named_modules`."""
    names: list[str] = []
    for name, module in model.named_modules():
        inside = names and (names[-1] == "" or name.startswith(f"{names[-1]}."))  # parents come before their children
        if isinstance(module, classes) and not inside:
            names.append(name)
    return names


def remove_checkpoints(model: nn.Module) -> None:
    """Keep everything again: take back `apply_plan` and `checkpoint_units`."""
    for module in model.modules():
        if isinstance(module, SegmentedSequential):
            module.__class__ = nn.Sequential  # type: ignore[assignment]
            for name in ("segments", "most_bytes"):
                vars(module).pop(name, None)
        elif isinstance(module, Checkpointed):
            module.__class__ = _own_class(module)  # type: ignore[assignment]
