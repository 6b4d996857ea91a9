"""Initialisations: functions of one module, for `model.apply`. Called by models when they are built."""

import math

from torch import nn


def he_std(conv: nn.Conv2d) -> float:
    """Standard deviation of He's normal initialisation, fan-out.

    std = sqrt(2 / fan_out), fan_out = C_out k^2 / groups: each input feeds only the outputs of its own group.

    Source:  He et al. 2015, Eq. 14; fan-out as in the released code of He et al. 2016.

    >>> round(he_std(nn.Conv2d(16, 32, 3)), 5)
    0.08333
    """
    height, width = conv.kernel_size
    return math.sqrt(2 * conv.groups / (conv.out_channels * height * width))


def he_normal(module: nn.Module) -> None:
    """He's normal weights (fan-out) and zero biases for a convolution; a zero bias for a linear layer.

    Linear weights keep torch's uniform +-1/sqrt(fan_in), which is also the released code's.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.normal_(module.weight, std=he_std(module))
    if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)
