"""Shortcuts h(x): what a residual unit adds its branch to. Made by `make_shortcut` for each unit of a network.

A shortcut is a module from x to h(x); one that also scales the branch returns the pair (h(x), factor on F(x)).
Where the dimension changes, scale, gate and dropout act on the result of option A or B.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PadShortcut(nn.Module):
    """Option A: every s-th position, new channels zero; no weights.

    h(x)[n, c, i, j] = x[n, c, s i, s j] for c < C_in, else 0

    Shape:   (N, C_in, H, W) -> (N, C_out, ceil(H/s), ceil(W/s)), C_out >= C_in
    Source:  He et al. 2016 (Deep residual learning), section 3.3
    """

    def __init__(self, in_channels: int, out_channels: int, *, stride: int) -> None:
        super().__init__()
        self.new_channels = out_channels - in_channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.new_channels))


class ConstantShortcut(nn.Module):
    """h(x) = a x, and the branch times b (Fig. 2b; b = 1 - a is the paper's frozen gate)."""

    def __init__(self, base: nn.Module, *, shortcut_scale: float, branch_scale: float) -> None:
        super().__init__()
        self.base = base
        self.shortcut_scale = shortcut_scale
        self.branch_scale = branch_scale

    def forward(self, x: Tensor) -> tuple[Tensor, float]:
        return self.base(x) * self.shortcut_scale, self.branch_scale


class GateShortcut(nn.Module):
    """h(x) = (1 - g(x)) x with g(x) = sigmoid(W_g x + b_g), one gate a channel and position (Fig. 2c, 2d).

    Args:    base: identity, or option A or B where the dimension changes
             gate: the 1x1 convolution W_g, b_g, with the unit's stride and output channels
             exclusive: whether the branch is scaled by g(x), the exclusive gate; else it is not, the shortcut-only gate
    Source:  He et al. 2016, section 3.1
    """

    def __init__(self, base: nn.Module, gate: nn.Conv2d, *, exclusive: bool) -> None:
        super().__init__()
        self.base = base
        self.gate = gate
        self.exclusive = exclusive

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        g = torch.sigmoid(self.gate(x))
        h = (1 - g) * self.base(x)
        return (h, g) if self.exclusive else h


SHORTCUTS = ("identity", "none", "constant", "exclusive_gate", "shortcut_gate", "conv1x1", "dropout")


@dataclass(frozen=True)
class ShortcutSpec:
    """Which shortcut the units of a network have.

    Args:    kind: one of SHORTCUTS; `none` is a plain network
             option: A (pad) or B (project) where the dimension changes
             shortcut_scale, branch_scale: a and b of `constant`
             gate_bias: b_g at the start
             dropout: rate of `dropout`; survivors are scaled by 1 / (1 - rate), as frameworks do
    """

    kind: str = "identity"
    option: str = "A"
    shortcut_scale: float = 0.5
    branch_scale: float = 1.0
    gate_bias: float = -6.0
    dropout: float = 0.5


def make_shortcut(
    spec: ShortcutSpec, in_channels: int, out_channels: int, *, stride: int, project: Callable[[], nn.Module]
) -> nn.Module | None:
    """The shortcut of one unit; None for a plain network.

    Args:    project: makes the unit's 1x1 projection, for option B and `conv1x1`
    """
    if spec.kind == "none":
        return None
    if spec.kind == "conv1x1":
        return project()
    base: nn.Module
    if stride == 1 and in_channels == out_channels:
        base = nn.Identity()
    elif spec.option == "A":
        base = PadShortcut(in_channels, out_channels, stride=stride)
    else:
        base = project()
    if spec.kind == "identity":
        return base
    if spec.kind == "constant":
        return ConstantShortcut(base, shortcut_scale=spec.shortcut_scale, branch_scale=spec.branch_scale)
    if spec.kind == "dropout":
        return nn.Sequential(base, nn.Dropout(spec.dropout))
    gate = nn.Conv2d(in_channels, out_channels, 1, stride=stride)
    return GateShortcut(base, gate, exclusive=spec.kind == "exclusive_gate")


def set_gate_bias(module: nn.Module, value: float) -> None:
    """b_g = value in a gate, after its weights were initialised; nothing in any other module."""
    if isinstance(module, GateShortcut) and module.gate.bias is not None:
        nn.init.constant_(module.gate.bias, value)
