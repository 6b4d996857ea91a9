"""Checks that the declarations of networks, and the readers of their weights, share."""

from typing import Any

import torch
from torch import Tensor

from verydeep.errors import UsageError

MOST_WIDTH, MOST_UNITS = 10**7, 100_000  # larger is a slip of the hand, or a file that lies: no machine holds it


def whole_numbers(**values: int) -> None:
    """Refuse what is not a whole number of at least 1, or beyond all sense.

    Raises:  UsageError: naming the argument.
    """
    for name, value in values.items():
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"{name} {value}: must be at least 1, a whole number")
        if value > MOST_WIDTH:
            raise UsageError(f"{name} {value}: must be at most {MOST_WIDTH}")


def stages(name: str, counts: tuple[int, ...], *, of: str, places: str = "stages") -> None:
    """Refuse what are not the units, or layers, of one or more stages.

    Raises:  UsageError: naming the argument.
    """
    if not counts or not all(isinstance(count, int) and count >= 1 for count in counts):
        raise UsageError(f"{name} {counts}: one or more {places} of at least 1 {of} each")
    if sum(counts) > MOST_UNITS:
        raise UsageError(f"{name} {counts}: must be at most {MOST_UNITS} {of}s in all")


def probability(**values: float) -> None:
    """Refuse what is not a probability below 1.

    Raises:  UsageError: naming the argument.
    """
    for name, value in values.items():
        if not 0 <= value < 1:
            raise UsageError(f"{name} {value}: a probability of at least 0 and below 1; nearest 0.999")


def fault_of(tensor: Any, own: Tensor, *, is_parameter: bool) -> str | None:
    """What keeps a tensor from a file, of the right shape, from taking the place of a model's own; None if nothing.

    Args:    is_parameter: whether it is trained, and so must be finite; a running variance may have overflowed
    """
    if not isinstance(tensor, Tensor) or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return "is no plain tensor"
    if tensor.is_floating_point() != own.is_floating_point() or tensor.is_complex() != own.is_complex():
        return f"is of {tensor.dtype}, the network has {own.dtype}"
    taken = tensor.to(own.dtype)
    if taken.isnan().any() or (is_parameter and taken.isinf().any()):
        return "holds NaN or inf"
    return None
