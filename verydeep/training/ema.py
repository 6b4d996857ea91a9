"""Exponential moving average of a model's weights and buffers, updated on the device, gated by the finite flag."""

import copy

import torch
from torch import Tensor, nn


class EMA:
    """m <- m + (1 - d_t)(w - m), d_t = min(d, (1 + t) / (10 + t)): a model that averages another.

    Floating-point buffers (batch-norm statistics) are averaged with the same weight; integer ones are copied.

    Args:    model: the model to follow
             decay: d per step, in (0, 1)
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay = decay
        self.model = copy.deepcopy(model).requires_grad_(False)
        pairs = list(zip(_tensors(self.model), _tensors(model), strict=True))
        self._floats = [pair for pair in pairs if pair[0].is_floating_point()]
        self._integers = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, *, step: int | Tensor, bad: Tensor) -> None:
        """Move towards the model, unless the step was bad.

        Args:    step: 0 for the first step of the run; a number, or a float64 scalar on the device
                 bad: boolean scalar on the device
        """
        rise = (1 + step) / (10 + step)
        decay = rise.clamp(max=self.decay) if isinstance(rise, Tensor) else min(self.decay, rise)
        weight = ((1 - decay) * (~bad)).to(torch.get_default_dtype())
        averages, currents = [a for a, _ in self._floats], [c for _, c in self._floats]
        moves = torch._foreach_sub(currents, averages)
        torch._foreach_mul_(moves, weight)
        torch._foreach_add_(averages, moves)
        for average, current in self._integers:
            average.copy_(current)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]
