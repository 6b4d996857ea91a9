"""Shortcut gains, truncation, signals and gradients by unit, against autograd and sums written out."""

import copy

import pytest
import torch
import torch.nn.functional as F

from verydeep.analysis.propagation import propagation
from verydeep.errors import UsageError
from verydeep.models.catalogue import create_model

OPTIONS = [
    {"order": "original"},
    {"order": "bn_after_addition"},
    {"order": "relu_before_addition"},
    {"order": "relu_only_preact"},
    {"order": "full_preact"},
    {"shortcut": "constant", "shortcut_scale": 0.5},
    {"shortcut": "exclusive_gate", "gate_bias": -2.0},
    {"shortcut": "conv1x1"},
    {"shortcut": "none"},
]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, 3, 8, 8, generator=generator), torch.tensor([0, 1, 2, 3])


def network(**options):
    torch.manual_seed(1)
    return create_model("resnet14_cifar", width=4, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_signals_and_gradients_are_those_of_a_pass_written_out(options, batch):
    model, (images, labels) = network(**options), batch
    read = propagation(model, images, labels)
    twin = copy.deepcopy(model)
    x, outputs, cut = twin.stem(images.contiguous(memory_format=torch.channels_last)), [], []
    for unit in twin.units():
        y, shortcut = unit.branch(x if unit.preact is None else unit.preact(x)), unit.shortcut
        if shortcut is not None:
            h = shortcut(unit.preact(x) if unit.share_preact and unit.preact is not None else x)
            h, factor = h if isinstance(h, tuple) else (h, 1.0)
            y = h + factor * y
        if options.get("order") == "bn_after_addition":
            y = F.batch_norm(y, None, None, unit.postact.norm.weight, unit.postact.norm.bias, training=True)
        cut.append((y < 0).double().mean().item() if unit.postact is not None else 0.0)
        x = y if unit.postact is None else F.relu(y)
        x.retain_grad()
        outputs.append(x)
    F.cross_entropy(twin.head(x), labels).backward()
    # one rounding may move a y across zero
    assert read.truncated == pytest.approx(cut, abs=2e-3)
    assert read.signal == pytest.approx([out.square().mean().item() for out in outputs], rel=1e-3)
    assert read.mean == pytest.approx([out.mean().item() for out in outputs], rel=1e-3, abs=1e-5)
    assert read.gradient_norm == pytest.approx([out.grad.norm().item() for out in outputs], rel=1e-2)


def test_the_product_of_constant_gains_is_lambda_to_the_number_of_units(batch):
    read = propagation(network(shortcut="constant", shortcut_scale=0.5), *batch)
    assert read.shortcut_gain.count(None) == 2, "the units that change the dimension have none"
    assert read.gain_product == pytest.approx(0.5**4)
    assert propagation(network(), *batch).gain_product == 1.0
    assert propagation(network(shortcut="none"), *batch).gain_product == 0.0


def test_the_gain_of_a_gate_is_that_of_its_jacobian(batch):
    model = network(shortcut="shortcut_gate", gate_bias=-1.0).eval()
    shortcut = next(model.units()).shortcut
    with torch.no_grad():
        shortcut.gate.weight.zero_()  # then h = (1 - sigmoid(-1)) x exactly
    read = propagation(model, *batch)
    assert read.shortcut_gain[0] == pytest.approx(1 - 1 / (1 + 2.718281828), abs=1e-6)


def test_dropout_survivors_are_scaled_so_the_gain_is_the_root_of_two():
    torch.manual_seed(0)
    read = propagation(network(shortcut="dropout"), torch.randn(64, 3, 8, 8), torch.zeros(64, dtype=torch.long))
    assert read.shortcut_gain[0] == pytest.approx(2**0.5, rel=0.05)


def test_the_network_is_left_as_it_was(batch):
    model = network(shortcut="dropout")
    before, state, training = copy.deepcopy(model.state_dict()), torch.get_rng_state(), model.training
    propagation(model, *batch)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state()) and model.training == training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not batch[0].requires_grad, "the caller's images are left as they were too"


def test_values_are_plain_json(batch):
    values = propagation(network(), *batch).to_dict()
    assert set(values) == {"shortcut_gain", "truncated", "signal", "mean", "gradient_norm", "gain_product"}
    assert all(value is None or isinstance(value, float) for value in values["shortcut_gain"])


def test_a_model_without_units_is_refused(batch):
    with pytest.raises(UsageError, match="has no ResidualUnit"):
        propagation(torch.nn.Linear(3, 3), *batch)
