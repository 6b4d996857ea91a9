"""Shortcuts: option A's sampling and padding, gates, dropout, and what they refuse to be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.nn.comparison import random_images
from verydeep import create_model
from verydeep.nn.shortcut import ConstantShortcut, GateShortcut, PadShortcut, ShortcutSpec, make_shortcut


@settings(max_examples=40)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    stride=st.integers(1, 3),
    in_channels=st.integers(1, 4),
    new_channels=st.integers(0, 5),
)
def test_option_a_takes_every_sth_position_and_pads_zeros(height, width, stride, in_channels, new_channels):
    x = random_images(2, in_channels, height, width)
    h = PadShortcut(in_channels, in_channels + new_channels, stride=stride)(x)
    assert h.shape == (2, in_channels + new_channels, -(-height // stride), -(-width // stride))
    assert not h[:, in_channels:].any()
    for i in range(h.shape[2]):
        for j in range(h.shape[3]):
            assert torch.equal(h[:, :in_channels, i, j], x[:, :, stride * i, stride * j])


def test_option_a_halves_7_to_4_and_has_no_weights():
    shortcut = PadShortcut(16, 32, stride=2)
    assert shortcut(torch.zeros(1, 16, 7, 7)).shape == (1, 32, 4, 4)
    assert not list(shortcut.parameters())


def test_option_a_keeps_the_size_where_only_the_channels_change():
    assert PadShortcut(16, 64, stride=1)(torch.zeros(1, 16, 7, 7)).shape == (1, 64, 7, 7)


def test_option_a_passes_the_gradient_to_the_positions_it_took():
    x = torch.zeros(1, 2, 4, 4, requires_grad=True)
    PadShortcut(2, 5, stride=2)(x).sum().backward()
    expected = torch.zeros(4, 4)
    expected[::2, ::2] = 1
    assert torch.equal(x.grad, expected.expand(1, 2, 4, 4))


def make(kind: str, in_channels: int = 4, out_channels: int = 4, *, stride: int = 1, **options) -> nn.Module:
    return make_shortcut(
        ShortcutSpec(kind=kind, **options),
        in_channels,
        out_channels,
        stride=stride,
        project=lambda: nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
    ).double()


@pytest.mark.parametrize("exclusive", [True, False], ids=["exclusive_gate", "shortcut_gate"])
def test_a_gate_is_per_channel_and_position_of_the_units_output(exclusive):
    shortcut = make("exclusive_gate" if exclusive else "shortcut_gate", 4, 6, stride=2)
    assert isinstance(shortcut, GateShortcut)
    x = random_images(2, 4, 5, 5)
    result = shortcut(x)
    h = result[0] if exclusive else result
    assert shortcut.gate(x).shape == h.shape == (2, 6, 3, 3)
    g = torch.sigmoid(shortcut.gate(x))
    torch.testing.assert_close(h[:, :4], (1 - g[:, :4]) * x[:, :, ::2, ::2])
    if exclusive:
        torch.testing.assert_close(result[1], g)


@pytest.mark.parametrize("gate_bias", [0.0, -5.0, -6.0, -7.0])
@pytest.mark.parametrize("kind", ["exclusive_gate", "shortcut_gate"])
def test_every_gate_of_a_network_starts_at_its_bias(kind, gate_bias):
    model = create_model("resnet20_cifar", width=2, shortcut=kind, gate_bias=gate_bias)
    gates = [module.gate for module in model.modules() if isinstance(module, GateShortcut)]
    assert len(gates) == 9
    for gate in gates:
        assert torch.equal(gate.bias, torch.full_like(gate.bias, gate_bias))


def test_frozen_gate_scales_both_sides():
    h, factor = make("constant", shortcut_scale=0.5, branch_scale=0.25)(torch.ones(1, 4, 2, 2))
    assert torch.equal(h, torch.full((1, 4, 2, 2), 0.5))
    assert factor == 0.25


def test_dropout_zeroes_its_rate_and_scales_the_survivors_in_training_only():
    shortcut = make("dropout", dropout=0.25)
    x = torch.ones(50, 4, 20, 20, dtype=torch.float64)
    torch.manual_seed(0)
    h = shortcut(x)
    assert set(h.unique().tolist()) == {0.0, 1 / 0.75}
    deviation = (0.25 * 0.75 / h.numel()) ** 0.5
    assert abs((h == 0).double().mean() - 0.25) < 5 * deviation
    assert torch.equal(shortcut.eval()(x), x)


@pytest.mark.parametrize(
    ("kind", "base"),
    [("constant", "base"), ("exclusive_gate", "base"), ("shortcut_gate", "base"), ("dropout", "0")],
)
@pytest.mark.parametrize(("option", "type_of_base"), [("A", PadShortcut), ("B", nn.Conv2d)])
def test_variants_act_on_the_result_of_option_a_or_b_where_the_dimension_changes(kind, base, option, type_of_base):
    assert type(make(kind, 4, 8, stride=2, option=option).get_submodule(base)) is type_of_base
    assert type(make(kind, option=option).get_submodule(base)) is nn.Identity


def test_1x1_convolution_is_on_every_unit_and_a_plain_network_has_no_shortcut():
    assert isinstance(make("conv1x1"), nn.Conv2d)
    assert make_shortcut(ShortcutSpec(kind="none"), 4, 8, stride=2, project=nn.Identity) is None


@pytest.mark.parametrize(
    ("kind", "count"), [("constant", 54), ("exclusive_gate", 54), ("shortcut_gate", 54), ("dropout", 54)]
)
def test_a_row_of_table_1_applies_to_all_54_units(kind, count):
    with torch.device("meta"):
        model = create_model("resnet110_cifar", shortcut=kind)
    kinds = (ConstantShortcut, GateShortcut, nn.Dropout)
    assert sum(isinstance(module, kinds) for module in model.modules()) == count
    assert sum(isinstance(module, PadShortcut) for module in model.modules()) == 2


def test_1x1_convolutions_and_gates_of_resnet110_have_the_weights_of_54_units():
    """16^2 and 16 -> 32 and so on: 18, 17 and 17 units of a width, and two that change it."""
    weights = 18 * 16 * 16 + 16 * 32 + 17 * 32 * 32 + 32 * 64 + 17 * 64 * 64
    channels = 18 * 16 + 18 * 32 + 18 * 64
    with torch.device("meta"):
        sizes = {
            kind: sum(p.numel() for p in create_model("resnet110_cifar", shortcut=kind).parameters())
            for kind in ("identity", "conv1x1", "exclusive_gate", "shortcut_gate")
        }
    assert sizes["identity"] == 1727962
    assert sizes["conv1x1"] == 1727962 + weights + 2 * channels  # a gain and a shift a channel
    assert sizes["exclusive_gate"] == sizes["shortcut_gate"] == 1727962 + weights + channels
