"""The optimizer of a run: torch's fused ones, and LARS on top of one; a flag on the device gates their whole update."""

from typing import Any

import torch
from torch import Tensor, nn

from verydeep.config import RunConfig
from verydeep.training.lars import LARS


def make_optimizer(model: nn.Module, config: RunConfig) -> torch.optim.Optimizer:
    """SGD with momentum, AdamW or LARS, with the config's weight-decay policy.

    `weight_decay_on="all"` is the paper's; `"weights"` leaves out parameters of fewer than two dimensions (norms,
    biases, scalars). Every fused optimizer of torch skips its update where its `found_inf` is 1.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.weight_decay_on == "all":
        groups: list[dict[str, Any]] = [dict(params=parameters, weight_decay=config.weight_decay)]
    else:
        groups = [
            dict(params=[p for p in parameters if p.ndim >= 2], weight_decay=config.weight_decay),
            dict(params=[p for p in parameters if p.ndim < 2], weight_decay=0.0),
        ]
    groups = [group for group in groups if group["params"]]
    assert config.lr is not None and config.momentum is not None
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=(config.momentum, 0.999), fused=True)
    nesterov = bool(config.nesterov) and config.momentum > 0
    if config.optimizer == "lars":
        return LARS(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov, trust=config.lars_trust)
    optimizer = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov, fused=True)
    if config.momentum > 0:
        # torch makes the momentum at the first step, uninitialised where `found_inf` then skips that step
        for parameter in parameters:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Give an optimizer the state of a checkpoint.

    Raises:  ValueError: if it is not of these parameters, or not finite; torch takes tensors of any shape.
    """
    optimizer.load_state_dict(state)
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            fits = isinstance(value, Tensor) and value.shape in (parameter.shape, ()) and value.isfinite().all()
            if not fits:
                raise ValueError(f"optimizer: {name} does not fit its parameter")
