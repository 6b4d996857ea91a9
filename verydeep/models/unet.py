"""U-Net of residual units: one map of logits as large as the image. Built by its class; `related` names it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from verydeep.errors import UsageError
from verydeep.models.spec import ResNetSpec
from verydeep.nn.init import he_normal
from verydeep.nn.shortcut import set_gate_bias
from verydeep.nn.unit import ORDERS, ResidualUnit, make_act, make_unit, scale_branch


class UNet(nn.Module):
    """A ResNet's stages down, the same stages up, each joined by the map of its level; logits for every position.

    Going down, the first unit of every stage but the first has stride 2 and leaves ceil(H/2) x ceil(W/2). Going up, a
    2x2 up-convolution with stride 2 doubles the map; the row or column that is then too many is cut off at the end, so
    that any image size is served without padding. It is concatenated with the level's map from the way down, and
    residual units follow, the first with a projection.

    Args:    spec: stem, stages and units of the way down; the way up has the same but the last stage
    Shape:   (N, in_channels, H, W) -> (N, num_classes, H, W)
    Raises:  UsageError: if the stem is not `cifar`, the option not B, or Fixup or stochastic depth is asked for.
    Source:  Ronneberger et al. 2015, Fig. 1
    Differs: residual units in place of pairs of convolutions, strides in place of poolings, padded convolutions, and
             so no cropping of the maps that are carried across
    """

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        _check(spec)
        self.spec = spec
        unit = spec.unit_spec()
        self.num_units = 2 * spec.num_units - spec.stage_units[-1]
        self.stem = nn.Sequential()
        self.stem.add_module("conv", nn.Conv2d(spec.in_channels, spec.width, 3, padding=1, bias=unit.conv_bias))
        self.stem.add_module("act", make_act("norm act", spec.width, unit))
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        channels = spec.width
        for stage, (count, width) in enumerate(zip(spec.stage_units, spec.stage_channels, strict=True)):
            self.down.append(self._make_stage(count, channels, width, stride=2 if stage else 1, preact=stage > 0))
            channels = width
        for count, width in zip(spec.stage_units[-2::-1], spec.stage_channels[-2::-1], strict=True):
            self.up.append(UpStage(channels, width, self._make_stage(count, 2 * width, width)))
            channels = width
        self.act = make_act(ORDERS[spec.order].before, channels, unit)
        self.classify = nn.Conv2d(channels, spec.num_classes, 1)
        self._initialise()
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        levels = []
        for stage in self.down:
            x = stage(x)
            levels.append(x)
        for stage, level in zip(self.up, levels[-2::-1], strict=True):
            x = stage(x, level)
        if self.act is not None:
            x = self.act(x)
        return self.classify(x)

    def units(self) -> Iterator[ResidualUnit]:
        """The residual units, from the stem to the logits."""
        return (module for module in self.modules() if isinstance(module, ResidualUnit))

    def _make_stage(
        self, count: int, in_channels: int, out_channels: int, *, stride: int = 1, preact: bool = True
    ) -> nn.Sequential:
        """Units of one stage; without `preact` the stem has applied the first unit's activation."""
        stage = nn.Sequential()
        for i in range(count):
            unit = make_unit(
                self.spec.unit_spec(),
                out_channels if i else in_channels,
                out_channels,
                stride=1 if i else stride,
                num_units=self.num_units,
                preact=preact or i > 0,
            )
            stage.append(unit)
        return stage

    def _initialise(self) -> None:
        self.apply(he_normal)
        for module in self.modules():
            set_gate_bias(module, self.spec.gate_bias)
            if isinstance(module, UpStage):
                module.initialise()
        for unit in self.units():
            scale_branch(unit, self.spec.unit_spec(), num_units=self.num_units)


class UpStage(nn.Module):
    """Up-convolution to the level's width, cut to the level's size, concatenation, residual units.

    Shape:   x (N, C, ceil(H/2), ceil(W/2)), level (N, C_level, H, W) -> (N, C_level, H, W)
    """

    def __init__(self, in_channels: int, out_channels: int, units: nn.Sequential) -> None:
        super().__init__()
        self.upsample = nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
        self.units = units

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        height, width = level.shape[2:]
        x = self.upsample(x)[:, :, :height, :width]
        return self.units(torch.cat([level, x], 1))

    def initialise(self) -> None:
        """Keep the variance: each output position is reached by one tap of C_in weights."""
        nn.init.normal_(self.upsample.weight, std=self.upsample.in_channels**-0.5)
        if self.upsample.bias is not None:
            nn.init.zeros_(self.upsample.bias)


def _check(spec: ResNetSpec) -> None:
    if spec.stem != "cifar":
        raise UsageError(f"stem {spec.stem}: a U-Net answers for every position, its stem keeps the size; give cifar")
    if spec.option != "B":
        raise UsageError(f"option {spec.option}: a U-Net's way up takes channels away, which needs projections; give B")
    if spec.scale == "fixup":
        raise UsageError("scale fixup: is derived for a head behind a mean over positions; give zero_init or skipinit")
    if spec.stochastic_depth > 0:
        raise UsageError(f"stochastic_depth {spec.stochastic_depth}: not for a U-Net; give 0")
