"""All that an analysis must leave as it was, as one value that can be compared."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


@torch.no_grad()
def randomise(model: nn.Module, *, seed: int = 0) -> None:
    """Gains and running variances in 0.5 .. 1.5, biases and running means N(0, 0.2^2); matrices as they are."""
    stream = torch.Generator().manual_seed(seed)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.is_floating_point() or tensor.dim() > 1:
            continue
        if name.endswith(("bias", "running_mean")):
            tensor.copy_(0.2 * torch.randn(tensor.shape, generator=stream))
        else:
            tensor.copy_(0.5 + torch.rand(tensor.shape, generator=stream))


def bits(tensor: Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.detach().contiguous().numpy().tobytes()


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Values bit for bit, gradients, flags, modes, classes, modules, hooks, attributes and random states."""
    found: dict[str, Any] = {
        "torch": bits(torch.get_rng_state()),
        "numpy": str(np.random.get_state()),
        "python": random.getstate(),
    }
    for name, module in model.named_modules(remove_duplicate=False):
        found[f"module {name}"] = (id(module), type(module), module.training, sorted(vars(module)))
        found[f"hooks {name}"] = {k: list(v) for k, v in vars(module).items() if "hooks" in k and isinstance(v, dict)}
        found[f"plain {name}"] = {k: v for k, v in vars(module).items() if isinstance(v, int | float | str | None)}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[f"tensor {name}"] = (id(tensor), bits(tensor), tensor.requires_grad, id(tensor.grad), bits(tensor.grad))
    return found
