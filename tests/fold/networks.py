"""Networks as after training, for the tests of folding."""

import torch
from torch import nn

BATCH_NORM = nn.modules.batchnorm._BatchNorm


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model in float64 with statistics and gammas as after training: any sign, one of them zero."""
    generator = torch.Generator().manual_seed(seed)
    for norm in (module for module in model.modules() if isinstance(module, BATCH_NORM)):
        norm.running_mean.normal_(generator=generator).mul_(0.1)
        norm.running_var.uniform_(0.5, 2, generator=generator)
        if norm.affine:
            with torch.no_grad():
                norm.weight.normal_(generator=generator)
                norm.weight[0] = 0
                norm.bias.normal_(generator=generator).mul_(0.1)
    return model.double()
