"""Numbers of units: against convolutions that are built, Fixup's formula in `nn`, and the condition it comes from."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from verydeep import ResNet, ResNetSpec, UsageError, theory
from verydeep.nn import scale
from verydeep.nn.unit import UNITS


def built_weights(kind: str, channels: int) -> int:
    convs = UNITS[kind].convs(channels, channels, stride=1, bias=False, stride_on="1x1", widen=1.0)
    return sum(parameter.numel() for conv in convs for parameter in conv.parameters())


@pytest.mark.parametrize("channels", [16, 64, 256])
def test_weights_are_those_of_built_units(channels):
    assert theory.basic_weights(channels) == built_weights("basic", channels)
    assert theory.bottleneck_weights(channels, channels // 4) == built_weights("bottleneck", channels)


@given(num_units=st.integers(1, 2000), num_layers=st.integers(2, 6))
def test_fixup_scale_is_that_of_the_networks_and_meets_its_condition(num_units, num_layers):
    a = theory.fixup_scale(num_units, num_layers)
    assert a == pytest.approx(scale.fixup_scale(num_units, num_layers), rel=1e-12)
    assert num_units * a ** (2 * num_layers - 2) == pytest.approx(1, rel=1e-9)


def test_fixup_of_one_layer_is_refused():
    with pytest.raises(UsageError, match="num_layers 1"):
        theory.fixup_scale(54, 1)


@pytest.mark.parametrize("num_units", [1, 2, 54])
def test_survival_is_that_of_the_networks(num_units):
    model = ResNet(ResNetSpec(stage_units=(num_units,), width=1, stochastic_depth=0.5))
    survival = [1 - unit.drop.p for unit in model.units()]
    assert theory.survival_probabilities(num_units, last=0.5) == pytest.approx(survival)
    assert isinstance(model.stages[0][0].branch.conv1, nn.Conv2d)
