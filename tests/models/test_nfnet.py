"""NF-ResNets: timm's with the same weights, published sizes, and a variance that is as expected without any norm."""

import re
from itertools import pairwise

import pytest
import timm
import torch
from torch import nn

from tests.nn.comparison import random_images, randomise
from verydeep import UsageError
from verydeep.models.nfnet import NFResNet, NFResNetSpec, expected_variances
from verydeep.nn.scale import Multiplier
from verydeep.nn.weight import RELU_GAMMA, ScaledStdConv2d

SIZES = {26: ((2, 2, 2, 2), 15995184), 50: ((3, 4, 6, 3), 25557048), 101: ((3, 4, 23, 3), 44549193)}


def imagenet(stage_units: tuple[int, ...], **options) -> NFResNetSpec:
    return NFResNetSpec(stage_units, **(dict(width=64, unit="bottleneck", stem="imagenet", num_classes=1000) | options))


@pytest.mark.parametrize("depth", SIZES)
def test_parameters_are_timms_with_skipinit(depth):
    """Without the learnt scalars they are ResNet's: gain and bias stand in for the norms' gain and shift."""
    stage_units, count = SIZES[depth]
    with torch.device("meta"):
        model = NFResNet(imagenet(stage_units))
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model.spec.depth == depth
    with torch.device("meta"):
        theirs = timm.create_model(f"nf_resnet{depth}", skipinit=True)
    assert sum(parameter.numel() for parameter in theirs.parameters()) == count


TIMM_GAMMA = 1.7139588594436646  # sampled; timm's stem has it too, where no ReLU comes before


def timm_name(name: str) -> str:
    for pattern, replacement in [
        (r"branch\.skipinit\.weight", "skipinit_gain"),
        (r"branch\.conv", "conv"),
        (r"shortcut\.conv", "downsample.conv"),
        (r"^linear", "head.fc"),
    ]:
        name = re.sub(pattern, replacement, name)
    return name


def timm_state(model: NFResNet) -> dict[str, torch.Tensor]:
    """Our gains, times our gamma over timm's."""
    gammas = {name: module.gamma for name, module in model.named_modules() if isinstance(module, ScaledStdConv2d)}
    state = {}
    for name, value in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        state[timm_name(name)] = value * gammas[module] / TIMM_GAMMA if kind == "gain" else value
    return state


@pytest.mark.parametrize("size", [64, 75], ids=["even", "odd"])
def test_network_equals_timms(size):
    torch.manual_seed(0)
    ours = NFResNet(imagenet((2, 1, 1, 1), width=8, num_classes=10)).double()
    randomise(ours, std=0.1)
    theirs = timm.create_model(
        "nf_resnet50",
        skipinit=True,
        std_conv_eps=1e-6,
        depths=(2, 1, 1, 1),
        channels=(32, 64, 128, 256),
        stem_chs=8,
        ch_div=1,
        num_classes=10,
    ).double()
    theirs.load_state_dict(timm_state(ours))
    images = [random_images(2, 3, size, size).requires_grad_() for _ in range(2)]
    outputs = [model(x) for model, x in zip((ours, theirs), images, strict=True)]
    torch.testing.assert_close(*outputs, atol=1e-9, rtol=1e-9)
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(images[0].grad, images[1].grad, atol=1e-9, rtol=1e-9)


def test_nf_resnet50_equals_timms():
    torch.manual_seed(0)
    ours = NFResNet(imagenet((3, 4, 6, 3))).double().eval()
    randomise(ours, std=0.05)
    theirs = timm.create_model("nf_resnet50", skipinit=True, std_conv_eps=1e-6).double().eval()
    theirs.load_state_dict(timm_state(ours))
    images = random_images(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), atol=1e-8, rtol=1e-8)


def test_expected_variances_start_again_at_each_stage():
    assert expected_variances((3, 1, 2), alpha=0.2) == pytest.approx([1, 1.04, 1.08, 1.12, 1.04, 1.04, 1.08])
    assert expected_variances((1,), alpha=1.0) == [1, 2]


@pytest.mark.parametrize("unit", ["basic", "bottleneck"])
def test_variance_at_the_start_is_as_expected(unit):
    """With the learnt scalars at 1, the signal after each unit of a stage has the variance that is divided out next."""
    torch.manual_seed(0)
    spec = NFResNetSpec((4,), width=256 if unit == "basic" else 128, unit=unit, alpha=0.5)
    model, x, measured = NFResNet(spec), torch.randn(4, spec.width, 16, 16), []
    for multiplier in (module for module in model.modules() if isinstance(module, Multiplier)):
        if isinstance(multiplier.weight, nn.Parameter):
            nn.init.ones_(multiplier.weight)
    with torch.no_grad():
        for each in model.units():
            x = each(x)
            measured.append(x.var().item())
    # the zeros that pad the maps take a little away; without beta each unit would multiply by 1.25
    added = [after - before for before, after in pairwise([1.0, *measured])]
    assert added == pytest.approx([0.25] * 4, rel=0.15)


def test_network_starts_as_its_shortcuts_and_every_branch_learns():
    torch.manual_seed(0)
    model = NFResNet(NFResNetSpec((2, 2), width=4)).double()
    x = random_images(2, 4, 6, 6)
    assert torch.equal(model.stages[0](x), x)
    images, labels = random_images(8, 3, 8, 8), torch.arange(8)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # the first step moves the scalars, the second what stood behind them
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert (parameter != before[name]).any(), f"{name} has not moved"


def test_no_norm_and_the_gain_of_relu_everywhere_but_at_the_images():
    model = NFResNet(NFResNetSpec((2, 2, 2), width=4))
    convs = {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}
    assert all(type(conv) is ScaledStdConv2d for conv in convs.values())
    assert convs.pop("stem.conv").gamma == 1
    assert {conv.gamma for conv in convs.values()} == {RELU_GAMMA}
    assert not any("Norm" in type(module).__name__ for module in model.modules())


def test_maps_are_as_large_as_a_residual_networks():
    model, sizes = NFResNet(NFResNetSpec((1, 1, 1), width=4)), []
    for stage in model.stages:
        stage.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    model(torch.randn(1, 3, 33, 9))
    assert sizes == [(4, 33, 9), (8, 17, 5), (16, 9, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(stage_units=()), "one or more stages"),
        (dict(stage_units=(1,), unit="basik"), "unit 'basik': unknown; nearest: basic"),
        (dict(stage_units=(1,), alpha=0.0), "alpha 0.0: must be above 0"),
        (dict(stage_units=(1,), width=0), "width 0: must be at least 1"),
    ],
)
def test_what_does_not_exist_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        NFResNetSpec(**options)
