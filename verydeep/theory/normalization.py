"""The family of normalisations: one formula, and the sets of values that share a mean and a variance.

Cut the channels of (N, C, positions) into G groups: a statistic is taken over a group's channels and positions, of one
sample, or of all samples. The norms differ in G and in that:

    batch      G = C   all samples
    instance   G = C   one sample
    group      G       one sample
    layer      G = 1   one sample
    rms        G = 1   one sample, the mean not subtracted
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from verydeep.errors import UsageError, resolve


@dataclass(frozen=True)
class Normalization:
    """Which values a norm takes together.

    Args:    groups: groups of channels; `channels` for one channel each, `one` for all together, `given` by the caller
             over_samples: whether all samples share a statistic
             centred: whether the mean is subtracted
    """

    groups: str
    over_samples: bool = False
    centred: bool = True


NORMALIZATIONS: dict[str, Normalization] = {
    "batch": Normalization("channels", over_samples=True),
    "layer": Normalization("one"),
    "group": Normalization("given"),
    "instance": Normalization("channels"),
    "rms": Normalization("one", centred=False),
}


def normalize(x: Tensor, kind: str, *, num_groups: int | None = None, eps: float = 0.0) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the values that share statistics; rms: x / sqrt(mean of squares + eps).

    Args:    kind: of NORMALIZATIONS
             num_groups: of `group`
    Shape:   (N, C) or (N, C, H, W) -> the same
    Raises:  UsageError: if the kind is unknown, the groups do not divide the channels, or each value would be alone.
    Source:  the chapter, section 5 and exercise 11.5; Zhang and Sennrich 2019, Eq. 4, for rms

    >>> x = torch.tensor([[2.0, 0.0, 4.0], [4.0, 2.0, 0.0], [6.0, 2.0, 4.0], [8.0, 4.0, 4.0]])
    >>> normalize(x, "batch").round(decimals=3)[0]
    tensor([-1.3420, -1.4140,  0.5770])
    >>> normalize(x, "layer").round(decimals=3)[0]
    tensor([ 0.0000, -1.2250,  1.2250])
    >>> normalize(x, "rms").round(decimals=3)[0]
    tensor([0.7750, 0.0000, 1.5490])
    >>> normalize(torch.tensor([[1.0, 2.0, 3.0, 6.0]]), "layer").round(decimals=3)
    tensor([[-1.0690, -0.5350,  0.0000,  1.6040]])
    """
    norm = resolve("norm", kind, NORMALIZATIONS)
    grouped = x.reshape(len(x), _num_groups(norm, x.shape[1], num_groups), -1)  # (N, G, values of a group)
    axes = (0, 2) if norm.over_samples else (2,)
    if norm.centred and grouped.shape[2] * (len(x) if norm.over_samples else 1) == 1:
        raise UsageError(f"norm {kind} of shape {tuple(x.shape)}: each value is alone, its variance is zero")
    if norm.centred:
        grouped = grouped - grouped.mean(axes, keepdim=True)
    return (grouped / torch.sqrt(grouped.square().mean(axes, keepdim=True) + eps)).reshape(x.shape)


def shared_cells(
    kind: str, num_samples: int, num_channels: int, *, cell: tuple[int, int], num_groups: int | None = None
) -> Tensor:
    """The cells (sample, channel) that share their statistics with one cell: a panel of the chapter's Fig. 11.3.

    Args:    cell: (sample, channel), from 0
             num_groups: of `group`
    Shape:   (N, C), bool
    Raises:  UsageError: as `normalize`
    Source:  the chapter, Fig. 11.3

    >>> shared_cells("group", 2, 4, cell=(0, 3), num_groups=2).int()
    tensor([[0, 0, 1, 1],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    norm = resolve("norm", kind, NORMALIZATIONS)
    groups = _num_groups(norm, num_channels, num_groups)
    sample, channel = cell
    same_group = torch.arange(num_channels) * groups // num_channels == channel * groups // num_channels
    same_sample = torch.arange(num_samples) == sample
    if norm.over_samples:
        same_sample = torch.ones_like(same_sample)
    return same_sample[:, None] & same_group


def _num_groups(norm: Normalization, num_channels: int, num_groups: int | None) -> int:
    if (num_groups is not None) != (norm.groups == "given"):
        raise UsageError(f"num_groups {num_groups}: is for norm group, which needs it")
    if num_groups is None:
        return num_channels if norm.groups == "channels" else 1
    if num_groups < 1 or num_channels % num_groups:
        fits = [groups for groups in range(1, num_channels + 1) if num_channels % groups == 0]
        nearest = min(fits, key=lambda groups: abs(groups - num_groups))
        raise UsageError(f"num_groups {num_groups}: must divide {num_channels} channels; nearest {nearest}")
    return num_groups
