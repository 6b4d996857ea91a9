"""Convolutions that normalise their weights instead of their inputs: scaled weight standardisation and weight norm.

Both keep `weight` and add `gain`, one a channel; `convert_*` change the convolutions of a built network in place.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.errors import UsageError

# Var(relu(x)) = (1 - 1/pi) / 2 for x ~ N(0, 1): this factor brings it back to 1
RELU_GAMMA = math.sqrt(2 / (1 - 1 / math.pi))


def standardize(weight: Tensor, gain: Tensor, *, gamma: float, eps: float) -> Tensor:
    """W' = gamma g (W - mu) / sqrt(N (sigma^2 + eps)), mu and sigma over the N inputs of each output channel.

    An output then has variance gamma^2 times its inputs' where these are uncorrelated, and mean 0 whatever their mean.

    Shape:   weight (C_out, C_in, k, k), gain (C_out, 1, 1, 1) -> (C_out, C_in, k, k)
    Source:  Brock et al. 2021 (Characterizing signal propagation), Eq. 4
    Differs: eps is inside the variance; the source's has none, its code takes max(N sigma^2, 1e-4)
    """
    fan_in = weight[0].numel()
    variance, mean = torch.var_mean(weight, (1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) * (gain * gamma * torch.rsqrt((variance + eps) * fan_in))


class ScaledStdConv2d(nn.Conv2d):
    """Convolution with scaled weight standardisation: its weight is `standardize(weight, gain)`.

    Args:    gamma: sqrt(2 / (1 - 1/pi)) for an input that comes from a ReLU, 1 for images
    Shape:   as nn.Conv2d
    Source:  Brock et al. 2021 (Characterizing signal propagation), section 4
    """

    gain: nn.Parameter
    gamma: float
    eps: float

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        gamma: float = RELU_GAMMA,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        _add_standardization(self, gamma=gamma, eps=eps)

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardize(self.weight, self.gain, gamma=self.gamma, eps=self.eps), self.bias)


def _add_standardization(conv: nn.Conv2d, *, gamma: float, eps: float) -> None:
    conv.gain = nn.Parameter(torch.ones_like(conv.weight[:, :1, :1, :1]))
    conv.gamma, conv.eps = gamma, eps  # type: ignore[assignment]


def convert_scaled_std(model: nn.Module, *, gamma: float = RELU_GAMMA, eps: float = 1e-6) -> None:
    """Make every plain convolution of a model a ScaledStdConv2d.

    In place: a convolution keeps its parameters, hooks and name, and gets a gain of 1.

    >>> conv = nn.Conv2d(2, 4, 3)
    >>> convert_scaled_std(conv)
    >>> type(conv).__name__, conv.gain.shape
    ('ScaledStdConv2d', torch.Size([4, 1, 1, 1]))
    """
    for conv in _plain_convs(model).values():
        conv.__class__ = ScaledStdConv2d
        _add_standardization(conv, gamma=gamma, eps=eps)


class WeightNormConv2d(nn.Conv2d):
    """Convolution with weight norm: length and direction of each output channel's weights are learnt apart.

    W = g V / |V|, V being `weight` and g `gain`

    Made by `convert_weight_norm`. The weight is computed in each forward and kept nowhere, so that copies, pickles and
    saved states hold V and g alone.

    Shape:   as nn.Conv2d; gain (C_out, 1, 1, 1)
    Source:  Salimans and Kingma 2016, Eq. 2
    """

    gain: nn.Parameter

    def forward(self, input: Tensor) -> Tensor:
        direction = F.normalize(self.weight.flatten(1), dim=1, eps=0.0).view_as(self.weight)
        return self._conv_forward(input, self.gain * direction, self.bias)


@torch.no_grad()
def convert_weight_norm(model: nn.Module) -> None:
    """Make every plain convolution of a model a WeightNormConv2d that computes what it did.

    In place: a convolution keeps its parameters, hooks and name, and gets the gain |V|.

    Raises:  UsageError: if a channel's weights are all zero, which have no direction; nothing is changed then.

    >>> conv = nn.Conv2d(1, 1, 1)
    >>> _ = nn.init.constant_(conv.weight, -3.0)
    >>> convert_weight_norm(conv)
    >>> conv.gain.item()
    3.0
    """
    convs = _plain_convs(model)
    lengths = {name: conv.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1) for name, conv in convs.items()}
    for name, length in lengths.items():
        if not length.is_meta and (length == 0).any():
            raise UsageError(
                f"weight norm of {name or 'the convolution'}: a channel's weights are all zero and have no direction; "
                "give a network whose branches do not start at zero weights, such as scale skipinit"
            )
    for name, conv in convs.items():
        conv.__class__ = WeightNormConv2d
        conv.gain = nn.Parameter(lengths[name])


def _plain_convs(model: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: module for name, module in model.named_modules() if type(module) is nn.Conv2d}
