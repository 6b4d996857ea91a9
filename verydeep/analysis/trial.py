"""A few training steps on one repeated batch: how large updates are, and whether the loss falls."""

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.analysis.call import Inputs, Loss, call, loss_value, map_tensors
from verydeep.analysis.one_pass import same_draws

LR = 1e-3  # of the Adam that is used where no optimizer is given: its update is then near 1e-3 of any weight's scale


@dataclass(frozen=True)
class Trial:
    """What the steps showed.

    Args:    losses: before each step, and after the last
             ratios: by name of a weight, |w_1 - w_0| / |w_0| of the first step
             momentum_gain: how much larger steps become when gradients agree
             missing: trainable parameters that the optimizer does not have
             strange: whether it has parameters that are not the model's
    """

    losses: list[float]
    ratios: dict[str, float]
    momentum_gain: float
    missing: list[str]
    strange: bool


def try_steps(
    model: nn.Module,
    inputs: Inputs,
    labels: Any,
    loss: Loss | None,
    *,
    optimizer: torch.optim.Optimizer | None,
    steps: int,
) -> Trial:
    """Train on one batch, every step with the same random draws; the optimizer is as before afterwards.

    Args:    optimizer: the user's; without, Adam with learning rate LR
             steps: 0 is one step
    """
    used = optimizer or torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=LR)
    own = {id(p) for group in used.param_groups for p in group["params"]}
    weights = {n: p for n, p in model.named_parameters() if p.requires_grad and sum(d > 1 for d in p.shape) > 1}
    losses, ratios = [], {}
    with optimizer_unchanged(used):
        for step in range(max(1, steps)):
            before = {name: p.detach().clone() for name, p in weights.items()} if step == 0 else {}
            losses.append(_step(model, inputs, labels, loss, used))
            for name, value in before.items():
                size = value.norm()
                if size > 0:
                    ratios[name] = float((weights[name].detach() - value).norm() / size)
        with torch.no_grad(), same_draws():
            losses.append(float(_loss(model, inputs, labels, loss)))
    names = {id(p) for p in model.parameters()}
    missing = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in own]
    return Trial(losses, ratios, _momentum_gain(used), missing, strange=not own <= names)


def _loss(model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None) -> Tensor:
    return loss_value(call(model, map_tensors(torch.clone, inputs)), labels, loss).mean()


def _step(model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None, optimizer: torch.optim.Optimizer) -> float:
    with torch.enable_grad(), same_draws():
        value = _loss(model, inputs, labels, loss)
        for parameter in model.parameters():
            parameter.grad = None
        if value.requires_grad:
            value.backward()
    optimizer.step()
    return float(value.detach())


def _momentum_gain(optimizer: torch.optim.Optimizer) -> float:
    """1 / (1 - momentum): how much larger a step becomes when gradients agree."""
    group = optimizer.param_groups[0]
    return 1 / (1 - min(0.999, float(group.get("momentum") or 0)))


@contextmanager
def optimizer_unchanged(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within it the optimizer works on copies of its state and settings; parameters are the caller's to put back."""
    attributes, groups = dict(vars(optimizer)), [dict(group) for group in optimizer.param_groups]
    optimizer.state = defaultdict(dict, {p: copy.deepcopy(values) for p, values in optimizer.state.items()})
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(values)
