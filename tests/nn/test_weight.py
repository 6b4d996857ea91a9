"""Weight standardisation and weight norm: against the formulas, torch's and timm's; what copies and files keep."""

import copy
import math
import pickle

import pytest
import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.nn.comparison import assert_agree, random_images, randomise
from verydeep import UsageError, create_model
from verydeep.nn.weight import (
    RELU_GAMMA,
    ScaledStdConv2d,
    WeightNormConv2d,
    convert_scaled_std,
    convert_weight_norm,
)

CONVERT = {"scaled_std": convert_scaled_std, "weight_norm": convert_weight_norm}


def naive_scaled_std(conv: ScaledStdConv2d, x: Tensor) -> Tensor:
    rows = []
    for channel in range(conv.out_channels):
        w = conv.weight[channel]
        sigma = ((w - w.mean()) ** 2).mean().add(conv.eps).sqrt()
        rows.append(conv.gamma * conv.gain[channel] * (w - w.mean()) / (sigma * math.sqrt(w.numel())))
    return F.conv2d(x, torch.stack(rows), conv.bias, conv.stride, conv.padding, groups=conv.groups)


def make_scaled_std(*, groups: int = 1) -> ScaledStdConv2d:
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=groups).double()
    convert_scaled_std(conv)
    randomise(conv)
    assert isinstance(conv, ScaledStdConv2d)
    return conv


@pytest.mark.parametrize("groups", [1, 2])
def test_scaled_std_equals_its_formula(groups):
    conv = make_scaled_std(groups=groups)
    assert_agree(conv, lambda x: naive_scaled_std(conv, x), random_images(2, 4, 5, 5))


def test_scaled_std_equals_timms():
    ours = ScaledStdConv2d(4, 6, 3, stride=2, padding=1, gamma=1.5).double()
    randomise(ours)
    theirs = timm.layers.ScaledStdConv2d(4, 6, 3, stride=2, padding=1, gamma=1.5).double()
    theirs.load_state_dict(ours.state_dict())
    x = random_images(2, 4, 5, 5)
    outputs = [module(x) for module in (ours, theirs)]
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=1e-12)
    for output in outputs:
        output.square().sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-10, rtol=1e-10, msg=name)


def test_scaled_std_is_blind_to_scale_and_mean_of_the_weights():
    conv = ScaledStdConv2d(4, 6, 3, eps=0.0).double()
    x = random_images(2, 4, 5, 5)
    before = conv(x)
    with torch.no_grad():
        conv.weight.mul_(3).add_(0.7)
    torch.testing.assert_close(conv(x), before, atol=1e-12, rtol=1e-12)


def test_relu_gamma_keeps_the_variance_through_relu_and_layer():
    torch.manual_seed(0)
    x = torch.randn(4096, 512, 1, 1)
    conv = ScaledStdConv2d(512, 512, 1)
    nn.init.zeros_(conv.bias)
    y = conv(torch.relu(x))
    assert pytest.approx(1.71286, abs=5e-6) == RELU_GAMMA
    assert y.var().item() == pytest.approx(1, rel=0.02)
    assert y.mean(0).abs().max().item() < 0.1  # no channel drifts, although the input's mean is 0.4


def test_weight_norm_keeps_the_output_and_equals_torchs():
    conv = nn.Conv2d(4, 6, 3, padding=1, groups=2).double()
    theirs = nn.utils.parametrizations.weight_norm(copy.deepcopy(conv))
    x = random_images(2, 4, 5, 5)
    before = conv(x)
    convert_weight_norm(conv)
    torch.testing.assert_close(conv(x), before, atol=1e-14, rtol=1e-14)
    with torch.no_grad():
        conv.gain.mul_(1.7)
        conv.weight.mul_(0.3)
        theirs.parametrizations.weight.original0.mul_(1.7)
        theirs.parametrizations.weight.original1.mul_(0.3)
    outputs = [module(x) for module in (conv, theirs)]
    torch.testing.assert_close(*outputs, atol=1e-12, rtol=1e-12)
    for output in outputs:
        output.square().sum().backward()
    originals = theirs.parametrizations.weight
    torch.testing.assert_close(conv.gain.grad, originals.original0.grad, atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(conv.weight.grad, originals.original1.grad, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("convert", CONVERT)
def test_copies_pickles_and_states_give_the_same_output_after_a_forward(convert):
    model = create_model("resnet8_cifar", width=4)
    CONVERT[convert](model)
    images = torch.randn(2, 3, 8, 8)
    model(images).sum().backward()
    model.zero_grad()
    model.eval()
    expected = model(images)
    again = create_model("resnet8_cifar", width=4)
    CONVERT[convert](again)
    again.eval().load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), again):
        assert torch.equal(twin(images), expected)
        with torch.no_grad():
            next(m for m in twin.modules() if isinstance(m, nn.Conv2d)).weight.neg_()  # it is the twin's own weight
        assert not torch.equal(twin(images), expected)
    assert torch.equal(model(images), expected)


@pytest.mark.parametrize("convert", CONVERT)
def test_conversion_keeps_parameters_hooks_and_names_and_is_done_once(convert):
    model = create_model("resnet8_cifar", width=4)
    names = [name for name, _ in model.named_modules()]
    before = dict(model.named_parameters())
    calls = []
    model.stem.conv.register_forward_hook(lambda *_: calls.append(1))
    CONVERT[convert](model)
    CONVERT[convert](model)
    model(torch.randn(2, 3, 8, 8))
    assert calls == [1]
    assert [name for name, _ in model.named_modules()] == names
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    new = {name.rpartition(".")[0] for name in set(after) - set(before)}
    assert new == {name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}


def test_weight_norm_trains_length_and_direction_apart():
    conv = nn.Conv2d(3, 2, 1).double()
    convert_weight_norm(conv)
    assert isinstance(conv, WeightNormConv2d)
    conv(random_images(2, 3, 4, 4)).square().sum().backward()
    along = (conv.weight * conv.weight.grad).flatten(1).sum(1)
    torch.testing.assert_close(along, torch.zeros(2, dtype=torch.float64), atol=1e-12, rtol=0)
    assert (conv.gain.grad != 0).all()


def test_weight_norm_of_zero_weights_is_refused_and_changes_nothing():
    model = create_model("resnet8_cifar", width=4, scale="zero_init", norm="none")
    with pytest.raises(
        UsageError, match=r"weight norm of stages\.0\.0\.branch\.conv2: a channel's weights are all zero"
    ):
        convert_weight_norm(model)
    assert all(type(m) is not WeightNormConv2d for m in model.modules())


@pytest.mark.parametrize("convert", CONVERT)
def test_converts_without_memory(convert):
    with torch.device("meta"):
        model = create_model("resnet8_cifar")
        CONVERT[convert](model)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
