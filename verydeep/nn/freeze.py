"""`freeze`: parts of a model that training leaves as they are, parameters, buffers and mode."""

from collections.abc import Iterable
from functools import partial

from torch import nn

from verydeep.errors import UsageError, nearest


def freeze(model: nn.Module, names: Iterable[str]) -> None:
    """Keep parts of a model as they are: no gradients, and eval mode for good, so that norms keep their statistics.

    In place. `model.train()` leaves the parts in eval mode, in copies and pickles of the model too; classes, names and
    hooks stay.

    Args:    names: of modules, such as "stem" and "stages.0"
    Raises:  UsageError: if there is no such module, or nothing is left to train; the model is then untouched.

    >>> model = nn.Sequential(nn.BatchNorm2d(2), nn.Linear(2, 2))
    >>> freeze(model, ["0"])
    >>> [module.training for module in model.train()]
    [False, True]
    """
    modules = {name: module for name, module in model.named_modules() if name}
    names = list(names)
    for name in names:
        if name not in modules:
            known = ", ".join(nearest(name, modules))
            raise UsageError(f"freeze {name!r}: no module of {type(model).__name__}; nearest: {known}")
    frozen = {id(parameter) for name in names for parameter in modules[name].parameters()}
    if all(id(parameter) in frozen or not parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"freeze {','.join(names)}: leaves no parameter to train; leave out the head, say")
    for name in names:
        modules[name].requires_grad_(False)
        modules[name].eval()
        for module in modules[name].modules():
            module.train = partial(_stay, module)


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:
    """In place of a frozen module's `train`."""
    return module
