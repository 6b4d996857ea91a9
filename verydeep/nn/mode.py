"""`evaluating`: a model in eval mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within it the model is in eval mode; afterwards each module is in its own mode again, also after an error.

    >>> norm = nn.BatchNorm2d(1)
    >>> with evaluating(norm):
    ...     norm.training
    False
    >>> norm.training
    True
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
