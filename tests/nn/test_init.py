"""Initialisation: known answers, and the weights of built networks."""

import math

import pytest
import torch
from torch import nn

from verydeep import create_model
from verydeep.nn.init import he_normal, he_std


@pytest.mark.parametrize(
    ("conv", "std"),
    [
        (nn.Conv2d(16, 32, 3), 0.08333),  # sqrt(2 / (9 32)); fan-in would be .11785
        (nn.Conv2d(32, 32, 3, groups=32), 0.47140),  # depthwise: fan-out is 9, not 9 32
        (nn.Conv2d(64, 256, 1), 0.08839),
        (nn.Conv2d(8, 16, (1, 5)), 0.15811),
        (nn.Conv2d(16, 32, 3, groups=4), 0.16667),
    ],
    ids=["3x3", "depthwise", "1x1", "1x5", "4_groups"],
)
def test_he_std_known_answers(conv, std):
    assert he_std(conv) == pytest.approx(std, abs=5e-6)


def test_torchs_own_default_has_a_sixth_of_hes_variance():
    """Uniform within 1/sqrt(fan-in): variance 1/(3 fan-in), against 2/fan-in; fan-in and fan-out are equal here."""
    torch.manual_seed(0)
    conv = nn.Conv2d(256, 256, 3)
    assert conv.weight.var().item() / he_std(conv) ** 2 == pytest.approx(1 / 6, rel=0.01)
    assert math.sqrt(2 / (9 * 16)) == pytest.approx(0.11785, abs=5e-6)  # 16 -> 32 by fan-in


@pytest.mark.parametrize("groups", [1, 64])
def test_he_std_is_what_torch_draws(groups):
    """torch's `kaiming_normal_` has the same rule but counts a grouped convolution's fan-out over all groups."""
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 1024, 3, groups=groups)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    assert conv.weight.std().item() * math.sqrt(groups) == pytest.approx(he_std(conv), rel=0.05)


def test_weights_of_a_network_have_mean_zero_and_hes_std():
    torch.manual_seed(0)
    model = create_model("preact_resnet50", num_classes=10)
    measured = 0
    for name, conv in model.named_modules():
        if not isinstance(conv, nn.Conv2d):
            continue
        n, weight = conv.weight.numel(), conv.weight.detach()
        out_channels, _, *kernel = weight.shape
        std = math.sqrt(2 / (out_channels * math.prod(kernel)))
        assert abs(weight.std().item() / std - 1) < 5 / math.sqrt(2 * n), name  # 5 standard errors
        assert abs(weight.mean().item()) < 5 * std / math.sqrt(n), name
        assert (weight.abs() > 3 * std).float().mean() < 0.01, name  # a normal has .0027
        measured += 1
    assert measured == 1 + 48 + 4  # stem, branches, projections


def test_norms_start_at_1_and_0_and_the_head_has_torchs_weights_and_no_bias():
    torch.manual_seed(0)
    model = create_model("resnet20_cifar", width=64, num_classes=1000)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 19
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()
        assert (norm.running_mean == 0).all()
        assert (norm.running_var == 1).all()
    weight = model.head.linear.weight
    assert (model.head.linear.bias == 0).all()
    assert weight.abs().max() <= 1 / 16  # uniform within 1 / sqrt(256)
    assert weight.std().item() == pytest.approx(1 / (16 * math.sqrt(3)), rel=0.01)


def test_convolutions_have_biases_only_without_a_norm_and_they_start_at_0():
    convs = [m for m in create_model("resnet20_cifar").modules() if isinstance(m, nn.Conv2d)]
    assert all(conv.bias is None for conv in convs)
    convs = [m for m in create_model("resnet20_cifar", norm="none").modules() if isinstance(m, nn.Conv2d)]
    assert all((conv.bias == 0).all() for conv in convs)


def test_he_normal_leaves_other_modules_alone():
    norm = nn.BatchNorm2d(4)
    nn.init.constant_(norm.weight, 0.5)
    he_normal(norm)
    assert (norm.weight == 0.5).all()


def test_same_seed_same_weights():
    def weights(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return create_model("resnet20_cifar", width=4).state_dict()

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["stem.conv.weight"], other["stem.conv.weight"])
