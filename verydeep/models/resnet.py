"""ResNet = stem, stages, head: every network of He et al. 2016 is one of these, built from a ResNetSpec.

Shape legend: x (N, C, H, W); channels_last in memory, which suits convolutions on CPUs and tensor cores.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from verydeep.models.spec import ResNetSpec
from verydeep.nn.init import he_normal
from verydeep.nn.scale import SCALES, ScalarBias
from verydeep.nn.shortcut import set_gate_bias
from verydeep.nn.unit import ORDERS, ResidualUnit, make_act, make_unit, scale_branch


class ResNet(nn.Module):
    """Stem, stages of residual units, head: images to logits.

    The activation after the stem's convolution stands before the first unit's split; in pre-activation orders it is the
    first unit's own f^, moved there, and the head begins with the one that the last addition lacks. With `stem_order`
    pool_first it stays in the first unit, after the pooling.

    Args:    spec: the network, declared
    Shape:   (N, in_channels, H, W) -> (N, num_classes)
    Source:  He et al. 2016, Fig. 4, 5 and appendix
    """

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = _make_stem(spec)
        self.stages = _make_stages(spec)
        self.head = Head(spec)
        self._initialise()
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        for stage in self.stages:
            x = stage(x)
        return self.head(x)

    def units(self) -> Iterator[ResidualUnit]:
        """The residual units, from the stem to the head."""
        return (module for module in self.stages.modules() if isinstance(module, ResidualUnit))

    def _initialise(self) -> None:
        """Draw the weights: He's normal, gates at their bias, then the branch scaling."""
        self.apply(he_normal)
        for module in self.modules():
            set_gate_bias(module, self.spec.gate_bias)
        for unit in self.units():
            scale_branch(unit, self.spec.unit_spec(), num_units=self.spec.num_units)
        if self.spec.scale == "fixup":
            nn.init.zeros_(self.head.linear.weight)


class Head(nn.Module):
    """Logits of the last feature map: the final activation if the order needs one, mean over positions, linear layer.

    Shape:   (N, C, H, W) -> (N, num_classes)
    """

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        channels = spec.stage_channels[-1]
        self.act = make_act(ORDERS[spec.order].before, channels, spec.unit_spec())
        self.bias = ScalarBias() if SCALES[spec.scale].scalar_biases else None
        self.linear = nn.Linear(channels, spec.num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if self.act is not None:
            x = self.act(x)
        features = x.mean((2, 3))  # (N, C)
        if self.bias is not None:
            features = self.bias(features)
        return self.linear(features)


def _make_stem(spec: ResNetSpec) -> nn.Sequential:
    unit = spec.unit_spec()
    stem = nn.Sequential()
    if spec.stem == "cifar":
        conv = nn.Conv2d(spec.in_channels, spec.width, 3, padding=1, bias=unit.conv_bias)
    else:
        conv = nn.Conv2d(spec.in_channels, spec.width, 7, stride=2, padding=3, bias=unit.conv_bias)
    stem.add_module("conv", conv)
    if spec.stem_order == "act_first":
        stem.add_module("act", make_act("norm act", spec.width, unit))
    if spec.stem == "imagenet":
        stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    return stem


def _make_stages(spec: ResNetSpec) -> nn.ModuleList:
    stages = nn.ModuleList()
    in_channels, index = spec.width, 0
    for stage, (num_units, out_channels) in enumerate(zip(spec.stage_units, spec.stage_channels, strict=True)):
        units = nn.Sequential()
        for i in range(num_units):
            index += 1
            units.append(
                make_unit(
                    spec.unit_spec(),
                    in_channels,
                    out_channels,
                    stride=2 if stage > 0 and i == 0 else 1,
                    num_units=spec.num_units,
                    preact=index > 1 or spec.stem_order == "pool_first",
                    drop=_stochastic_depth(spec, index),
                )
            )
            in_channels = out_channels
        stages.append(units)
    return stages


def _stochastic_depth(spec: ResNetSpec, index: int) -> StochasticDepth | None:
    """Drop unit l of L with probability l/L p_L; survivors are scaled by 1/(1 - p), so that evaluation needs no factor.

    Source:  Huang et al. 2016, Eq. 4
    Differs: each image draws for itself, not the whole batch
    """
    if spec.stochastic_depth == 0:
        return None
    return StochasticDepth(spec.stochastic_depth * index / spec.num_units, mode="row")
