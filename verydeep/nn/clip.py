"""Adaptive gradient clipping: gradients bounded by the size of the weights that they change. For `train_step`s."""

from collections.abc import Iterable

import torch
from torch import Tensor


def unit_norms(x: Tensor) -> Tensor:
    """Norm of the weights of each output unit; of all entries, for a scalar, a vector or one value a channel.

    Shape:   (C_out, ...) -> (C_out, 1, ...), or a scalar

    >>> unit_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5.],
            [1.]])
    >>> unit_norms(torch.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if x.squeeze().dim() <= 1:
        return x.norm()
    return x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


@torch.no_grad()
def clip_gradients_adaptively(
    parameters: Tensor | Iterable[Tensor], *, clipping: float = 0.01, eps: float = 1e-3
) -> None:
    """Shorten each unit's gradient to `clipping` times the norm of its weights, where it is longer.

    G_i <- lambda |W_i|* / |G_i| G_i where |G_i| > lambda |W_i|*, with |W_i|* = max(|W_i|, eps)

    In place; nothing waits for the device. The source leaves the head's linear layer out.

    Args:    clipping: lambda, above 0
             eps: so that weights at zero can move
    Source:  Brock et al. 2021 (High-performance), Eq. 3

    >>> w = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> w.grad = torch.tensor([[0.0, 2.0]])
    >>> clip_gradients_adaptively(w, clipping=0.1)
    >>> w.grad
    tensor([[0.0000, 0.5000]])
    """
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        if parameter.grad is None:
            continue
        allowed = unit_norms(parameter).clamp(min=eps) * clipping
        # a gradient of 0 gives inf, and keeps its length
        parameter.grad.mul_((allowed / unit_norms(parameter.grad)).clamp(max=1))
