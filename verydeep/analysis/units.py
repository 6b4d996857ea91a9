"""The residual units of a model by name, what goes in and out of them, and modules put in the place of others."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from verydeep.errors import UsageError
from verydeep.nn.unit import ResidualUnit


def residual_units(model: nn.Module) -> dict[str, ResidualUnit]:
    """The residual units of a model, plain ones too, by the name of the module, in the order of `named_modules`.

    Raises:  UsageError: if there is none.
    """
    units = {name: module for name, module in model.named_modules() if isinstance(module, ResidualUnit)}
    if not units:
        raise UsageError(f"model {type(model).__name__}: has no ResidualUnit among its modules")
    return units


def shortcut_units(model: nn.Module) -> dict[str, ResidualUnit]:
    """The residual units of a model, all of which must have a shortcut.

    Raises:  UsageError: if there is no unit, or one is plain.
    """
    units = residual_units(model)
    plain = [name for name, unit in units.items() if unit.shortcut is None]
    if plain:
        raise UsageError(f"unit {plain[0]!r}: has no shortcut, so every path takes its branch; give a residual network")
    return units


@torch.no_grad()
def unit_signals(model: nn.Module, images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What went into and out of each residual unit in one forward pass, in running order.

    Raises:  UsageError: if the model has no unit, or one runs twice.
    """
    signals: dict[str, tuple[Tensor, Tensor]] = {}

    def reader(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def read(unit: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            if name in signals:
                raise UsageError(f"unit {name!r}: runs twice in one pass; units must be modules of their own")
            signals[name] = inputs[0], output

        return read

    handles = [unit.register_forward_hook(reader(name)) for name, unit in residual_units(model).items()]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return signals


@contextmanager
def replaced(model: nn.Module, modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Within it, the modules named are others.

    Args:    modules: name of a module in the model -> what stands in its place
    Raises:  UsageError: if a name is not of a module inside the model.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    places = {name: (known[_parent(model, name, known)], name.rpartition(".")[2]) for name in modules}
    try:
        for name, module in modules.items():
            setattr(*places[name], module)
        yield
    finally:
        for name in reversed(list(modules)):
            setattr(*places[name], known[name])


def _parent(model: nn.Module, name: str, known: Mapping[str, nn.Module]) -> str:
    if name not in known or name == "":
        raise UsageError(f"site {name!r}: not the name of a module inside {type(model).__name__}")
    return name.rpartition(".")[0]
