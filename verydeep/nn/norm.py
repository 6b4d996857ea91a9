"""The normalisations by name, thin over torch's own, and batch norm over groups of images or over processes.

Units make their norms here; training converts batch norms with `convert_batch_norm`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.errors import UsageError, resolve

NormFactory = Callable[[int], nn.Module]


class InstanceNorm2d(nn.InstanceNorm2d):
    """Instance norm, affine, that refuses maps of one position, whose variance is zero.

    Shape:   (N, C, H, W) -> (N, C, H, W), H W > 1
    Raises:  UsageError: on a 1x1 map, which it would turn to zeros.
    Source:  Ulyanov et al. 2016
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.shape[2:].numel() == 1:
            raise UsageError(
                f"norm instance on a 1x1 map of {input.shape[1]} channels: its variance is zero; "
                "use group or layer, or larger images"
            )
        return super().forward(input)


class RMSNorm2d(nn.Module):
    """Root-mean-square norm of a feature map: y = gamma_c x / sqrt(mean_{C,H,W} x^2 + eps).

    Shape:   (N, C, H, W) -> (N, C, H, W)
    Source:  Zhang and Sennrich 2019, Eq. 4, with one gain a channel.
    """

    def __init__(self, num_channels: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, list(x.shape[1:]), eps=self.eps) * self.weight[:, None, None]


def default_num_groups(num_channels: int) -> int:
    """Groups of group norm when none is asked for: at most 32, of at least 4 channels, dividing the channels.

    >>> [default_num_groups(channels) for channels in (2, 16, 64, 256)]
    [1, 4, 16, 32]
    """
    most = min(32, max(1, num_channels // 4))
    return next(groups for groups in range(most, 0, -1) if num_channels % groups == 0)


def group_norm(num_channels: int, *, num_groups: int | None = None) -> nn.GroupNorm:
    """Group norm with `num_groups`, or `default_num_groups`.

    Raises:  UsageError: if the channels do not divide into the groups.
    Source:  Wu and He 2018
    """
    groups = default_num_groups(num_channels) if num_groups is None else num_groups
    if groups < 1 or num_channels % groups:
        fits = [g for g in range(1, num_channels + 1) if num_channels % g == 0]
        nearest = min(fits, key=lambda g: abs(g - groups))
        raise UsageError(f"num_groups {groups}: must divide {num_channels} channels; nearest {nearest}")
    return nn.GroupNorm(groups, num_channels)


NORMS: dict[str, NormFactory | None] = {
    "batch": nn.BatchNorm2d,
    "layer": partial(nn.GroupNorm, 1),  # one sample, all channels and positions
    "group": group_norm,
    "instance": partial(InstanceNorm2d, affine=True),
    "rms": RMSNorm2d,
    "none": None,
}


def norm_factory(name: str, *, num_groups: int | None = None) -> NormFactory | None:
    """The function from a number of channels to the norm `name`; None for `none`.

    Raises:  UsageError: if the name is unknown, or `num_groups` is given to another norm than `group`.
    """
    factory = resolve("norm", name, NORMS)
    if num_groups is None:
        return factory
    if factory is not group_norm:
        raise UsageError(f"num_groups {num_groups}: is for norm group, not {name}")
    return partial(group_norm, num_groups=num_groups)


def update_running(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
    """One step of a batch norm's running statistics towards a mean and an unbiased variance, (C,) each."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    norm.num_batches_tracked.add_(1)
    momentum = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_(variance.to(norm.running_var.dtype), momentum)


class GhostBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose statistics are over groups of images of one batch, as over several small devices.

    A batch of N is cut into ceil(N / group_size) parts of nearly equal size, each normalised by its own statistics.
    The running statistics take one step towards the mean of the parts', weighted by their images.

    Args:    group_size: images a group; as a batch of `group_size` on each of several devices.
    Source:  Hoffer et al. 2017, Alg. 1; He et al. 2016, appendix (128 images on two devices of 64).
    """

    group_size: int

    def forward(self, input: Tensor) -> Tensor:
        num_groups = -(-input.shape[0] // self.group_size)
        if not self.training or num_groups <= 1:
            return super().forward(input)
        dtype = torch.promote_types(input.dtype, torch.float32)
        means = input.new_zeros((num_groups, self.num_features), dtype=dtype)
        variances = means.clone()
        parts = input.tensor_split(num_groups)
        # momentum 1 puts each part's own mean and unbiased variance into the row given for them
        outputs = [
            F.batch_norm(
                part, means[i], variances[i], self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
            )
            for i, part in enumerate(parts)
        ]
        shares = [len(part) / len(input) for part in parts]  # on the host: no copy to wait for, no autocast
        mean = torch.stack([share * row for share, row in zip(shares, means, strict=True)]).sum(0)
        variance = torch.stack([share * row for share, row in zip(shares, variances, strict=True)]).sum(0)
        update_running(self, mean, variance)
        return torch.cat(outputs)


class SumOverProcesses(torch.autograd.Function):
    """Sum of a tensor over all processes, whose gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return SumOverProcesses.apply(gradient)


class SyncBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over the images of all processes, on any device; ranks weigh by their images.

    Two differentiable all-reduces: the mean, then the centred sum of squares, so that a large mean costs no digits.
    """

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        axes = (0, 2, 3)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        count = x.new_full((1,), x.numel() // self.num_features)
        total = SumOverProcesses.apply(torch.cat([x.sum(axes), count]))
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = x - mean[:, None, None]
        variance = SumOverProcesses.apply(centred.square().sum(axes)) / count
        with torch.no_grad():
            update_running(self, mean, variance * count / (count - 1).clamp(min=1))
        gain = torch.rsqrt(variance + self.eps) * (1 if self.weight is None else self.weight)
        output = centred * gain[:, None, None]
        if self.bias is not None:
            output = output + self.bias[:, None, None]
        return output.to(input.dtype)


def convert_batch_norm(model: nn.Module, *, group_size: int | None = None, sync: bool = False) -> None:
    """Make every `nn.BatchNorm2d` of a model take its statistics over groups of images, or over all processes.

    In place: a norm keeps its parameters, buffers, hooks and names; only where its statistics come from changes.

    Raises:  UsageError: if both are asked for, or the model has a batch norm of another class, which cannot be changed.
    """
    if group_size is not None and sync:
        raise UsageError(f"bn_group_size {group_size} with sync_bn: statistics are over groups or over all; give one")
    if group_size is None and not sync:
        return
    for name, module in model.named_modules():
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if type(module) not in (nn.BatchNorm2d, GhostBatchNorm2d, SyncBatchNorm2d):
            option = "sync_bn true" if sync else f"bn_group_size {group_size}"
            raise UsageError(
                f"{option}: {name} is a {type(module).__name__}; only torch.nn.BatchNorm2d can be converted"
            )
        if sync:
            module.__class__ = SyncBatchNorm2d
        elif group_size is not None:
            module.__class__ = GhostBatchNorm2d
            module.group_size = group_size  # type: ignore[assignment]


@contextmanager
def local_batch_norm(model: nn.Module) -> Iterator[None]:
    """Within it, synchronised batch norms take this process's statistics alone: it can run without the others."""
    norms: list[nn.Module] = [module for module in model.modules() if type(module) is SyncBatchNorm2d]
    for norm in norms:
        norm.__class__ = nn.BatchNorm2d
    try:
        yield
    finally:
        for norm in norms:
            norm.__class__ = SyncBatchNorm2d
