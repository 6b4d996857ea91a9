"""NF-ResNet: residual networks without norms, whose signal's variance is kept by arithmetic. Named in `related`.

Train it with `nn.clip.clip_gradients_adaptively`.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.errors import UsageError, resolve_name
from verydeep.models.check import stages, whole_numbers
from verydeep.nn.scale import Multiplier
from verydeep.nn.unit import UNITS, ResidualUnit
from verydeep.nn.weight import convert_scaled_std


@dataclass(frozen=True)
class NFResNetSpec:
    """A normaliser-free residual network declared.

    Args:    stage_units: residual units of each stage; the first unit of every stage but the first has stride 2
             width: channels of the first stage, before the unit's expansion; doubles with each stage
             unit: basic or bottleneck, the stride on a bottleneck's 3x3
             stem: cifar (3x3 convolution) or imagenet (7x7 with stride 2, then 3x3 max pooling with stride 2)
             alpha: factor on every branch; alpha^2 is the variance that a unit adds
             num_classes, in_channels: outputs, and channels of an image
    Raises:  UsageError: if a name is unknown or a number breaks its rule.
    """

    stage_units: tuple[int, ...]
    width: int = 16
    unit: str = "basic"
    stem: str = "cifar"
    alpha: float = 0.2
    num_classes: int = 10
    in_channels: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage_units", tuple(self.stage_units))
        object.__setattr__(self, "unit", resolve_name("unit", self.unit, UNITS))
        object.__setattr__(self, "stem", resolve_name("stem", self.stem, ("cifar", "imagenet")))
        stages("stage_units", self.stage_units, of="unit")
        whole_numbers(width=self.width, num_classes=self.num_classes, in_channels=self.in_channels)
        if not 0 < self.alpha < math.inf:
            raise UsageError(f"alpha {self.alpha}: must be above 0 and finite")

    @property
    def num_units(self) -> int:
        return sum(self.stage_units)

    @property
    def depth(self) -> int:
        """Weighted layers on the longest path: stem, branches, head; projections not counted."""
        return 2 + UNITS[self.unit].num_layers * self.num_units

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `NFResNetSpec(**...)` takes back."""
        return dataclasses.asdict(self) | {"stage_units": list(self.stage_units)}


def expected_variances(stage_units: tuple[int, ...], *, alpha: float) -> list[float]:
    """Variance of the signal before each unit, and after the last.

    Var(h_{l+1}) = Var(h_l) + alpha^2; after the first unit of a stage, whose shortcut takes the normalised signal,
    1 + alpha^2.

    Source:  Brock et al. 2021 (Characterizing signal propagation), section 3

    >>> [round(variance, 2) for variance in expected_variances((2, 2), alpha=0.2)]
    [1.0, 1.04, 1.08, 1.04, 1.08]
    """
    variances = [1.0]
    for count in stage_units:
        for i in range(count):
            variances.append((variances[-1] if i else 1.0) + alpha**2)
    return variances


class NFResNet(nn.Module):
    """Stem, units x' = h + alpha F(relu(x) / beta), ReLU, mean over positions, linear layer; no norm.

    beta is the square root of `expected_variances`. All convolutions are standardised, with the gain of ReLU but for
    the stem, which meets images.

    Shape:   (N, in_channels, H, W) -> (N, num_classes)
    Source:  Brock et al. 2021 (Characterizing signal propagation), section 3 and Fig. 4
    Differs: ReLU's gain is the exact sqrt(2 / (1 - 1/pi)) = 1.71286; the released code has a sampled 1.71396
    """

    def __init__(self, spec: NFResNetSpec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = _make_stem(spec)
        self.stages = _make_stages(spec)
        self.act = nn.ReLU()
        self.linear = nn.Linear(_channels(spec, len(spec.stage_units) - 1), spec.num_classes)
        self.apply(_initialise)
        convert_scaled_std(self.stem, gamma=1.0)
        convert_scaled_std(self.stages)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            x = stage(x)
        return self.linear(self.act(x).mean((2, 3)))

    def units(self) -> Iterator[ResidualUnit]:
        """The residual units, from the stem to the head."""
        return (module for module in self.stages.modules() if isinstance(module, ResidualUnit))


def nf_unit(kind: str, in_channels: int, out_channels: int, *, stride: int, alpha: float, beta: float) -> ResidualUnit:
    """x' = h + alpha a F(relu(x) / beta), a a learnt scalar that starts at zero (SkipInit).

    h = x; where the dimension changes, a 1x1 convolution of relu(x) / beta, mean-pooled 2x2 before it for a stride.
    The convolutions are plain until `convert_scaled_std`.

    Args:    kind: of UNITS
    Source:  Brock et al. 2021 (Characterizing signal propagation), Fig. 4
    """
    convs = UNITS[kind].convs(in_channels, out_channels, stride=stride, bias=True, stride_on="3x3", widen=1.0)
    branch = nn.Sequential()
    for i, conv in enumerate(convs, start=1):
        branch.add_module(f"conv{i}", conv)
        if i < len(convs):
            branch.add_module(f"act{i}", nn.ReLU())
    branch.add_module("skipinit", Multiplier(0.0))
    branch.add_module("alpha", Multiplier(alpha, learnable=False))
    changes_dimension = stride > 1 or in_channels != out_channels
    shortcut = _make_projection(in_channels, out_channels, stride=stride) if changes_dimension else nn.Identity()
    return ResidualUnit(
        branch,
        shortcut=shortcut,
        preact=nn.Sequential(nn.ReLU(), Multiplier(1 / beta, learnable=False)),
        share_preact=changes_dimension,
    )


def _make_projection(in_channels: int, out_channels: int, *, stride: int) -> nn.Sequential:
    """Mean pooling that leaves ceil(H/2), as a strided convolution does, then a 1x1 convolution."""
    projection = nn.Sequential()
    if stride > 1:
        projection.add_module("pool", nn.AvgPool2d(2, stride, ceil_mode=True, count_include_pad=False))
    projection.add_module("conv", nn.Conv2d(in_channels, out_channels, 1))
    return projection


def _channels(spec: NFResNetSpec, stage: int) -> int:
    return spec.width * 2**stage * UNITS[spec.unit].expansion


def _make_stem(spec: NFResNetSpec) -> nn.Sequential:
    stem = nn.Sequential()
    if spec.stem == "cifar":
        stem.add_module("conv", nn.Conv2d(spec.in_channels, spec.width, 3, padding=1))
    else:
        stem.add_module("conv", nn.Conv2d(spec.in_channels, spec.width, 7, stride=2, padding=3))
        stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def _make_stages(spec: NFResNetSpec) -> nn.ModuleList:
    betas = iter([math.sqrt(v) for v in expected_variances(spec.stage_units, alpha=spec.alpha)])
    stages = nn.ModuleList()
    in_channels = spec.width
    for stage, count in enumerate(spec.stage_units):
        out_channels = _channels(spec, stage)
        units = nn.Sequential()
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            unit = nf_unit(spec.unit, in_channels, out_channels, stride=stride, alpha=spec.alpha, beta=next(betas))
            units.append(unit)
            in_channels = out_channels
        stages.append(units)
    return stages


def _initialise(module: nn.Module) -> None:
    """Normal weights, zero biases; the size of a standardised weight matters to its learning rate alone."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
    if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
        nn.init.zeros_(module.bias)
