"""Networks with weights from torchvision and timm, and back: the same logits; what is another network is refused."""

import copy
import re

import pytest
import timm
import torch
import torchvision
from torch import nn

from tests.nn.comparison import random_images
from verydeep import create_model, export_weights, import_weights
from verydeep.errors import UsageError
from verydeep.models.foreign import without_wrappers

TORCHVISION = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2"]
TIMM = ["resnet18", "resnet26", "resnet34", "resnet50", "resnet101", "resnet152", "resnet200", "wide_resnet50_2",
        "wide_resnet101_2", "resnetv2_18", "resnetv2_34", "resnetv2_50", "resnetv2_101", "resnetv2_152"]  # fmt: skip
BOTH = [("torchvision", name) for name in TORCHVISION] + [("timm", name) for name in TIMM]
SLOW = re.compile(r"101|152|200|wide|resnet34|resnet26|v2_34")  # more of the same units


@torch.no_grad()
def randomise(model: nn.Module) -> nn.Module:
    """Random norms with gains of both signs, statistics off 0 and 1, a random head; in double precision, eval mode."""
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.weight.uniform_(0.5, 1.5).mul_(torch.randint(0, 2, norm.weight.shape) * 2 - 1)
        norm.bias.normal_(std=0.2)
        norm.running_mean.normal_(std=0.2)
        norm.running_var.uniform_(0.5, 1.5)
        norm.num_batches_tracked.fill_(7)
    for name, parameter in model.named_parameters():
        if name.endswith(("fc.bias", "fc.weight")):
            parameter.normal_(std=0.1)
    return model.double().eval()


def make(library: str, name: str) -> nn.Module:
    torch.manual_seed(0)
    if library == "timm":
        return randomise(timm.create_model(name, num_classes=7))
    return randomise(torchvision.models.get_model(name, num_classes=7))


@torch.no_grad()
def assert_same_logits(ours: nn.Module, theirs: nn.Module) -> None:
    images = random_images(2, 3, 64, 64)
    expected = theirs(images)
    assert expected.shape == (2, 7) and expected.std() > 1e-3
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-10 * expected.abs().max().item())


@pytest.mark.parametrize(
    ("library", "name"),
    [pytest.param(*pair, id="-".join(pair), marks=[pytest.mark.slow] if SLOW.search(pair[1]) else []) for pair in BOTH],
)
def test_logits_are_theirs_and_the_weights_come_back_bit_for_bit(library, name):
    theirs = make(library, name)
    state = theirs.state_dict()
    ours = import_weights(state)
    assert_same_logits(ours, theirs)
    back = export_weights(ours)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
    assert not any(key.startswith("preact") for key in back) and not ours.training
    again = copy.deepcopy(theirs)
    again.load_state_dict(back)
    assert import_weights(again).spec == ours.spec


@pytest.mark.parametrize("name", ["resnetv2_34", "resnetv2_50"])
def test_timms_pre_activation_is_an_explicit_option_of_ours(name):
    """Not the paper's network: its first activation comes after the pooling, in 34 beside a raw shortcut."""
    theirs = make("timm", name)
    spec = import_weights(theirs).spec
    assert (spec.order, spec.stem_order) == ("full_preact", "pool_first")
    options = {"stride_on": "3x3"} if name == "resnetv2_50" else {}
    depth = name.removeprefix("resnetv2_")
    ours = create_model(f"preact_resnet{depth}", num_classes=7, stem_order="pool_first", **options).double()
    assert ours.spec == spec
    torch.manual_seed(1)
    theirs.load_state_dict(export_weights(randomise(ours)))
    assert_same_logits(ours, theirs)
    paper = create_model(f"preact_resnet{depth}", num_classes=7, **options)
    assert "act" in paper.stem._modules and "act" not in ours.stem._modules


def test_the_place_of_the_stride_is_said_or_read_from_the_module():
    theirs = make("torchvision", "resnet50")
    for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    by_state = import_weights(theirs.state_dict(), stride_on="1x1")
    assert_same_logits(by_state, theirs)
    assert import_weights(theirs).spec == by_state.spec
    with pytest.raises(UsageError, match=r"stride \(2, 2\) of layer2\.0\.conv1; must be \(1, 1\)"):
        import_weights(theirs, stride_on="3x3")
    with pytest.raises(UsageError, match=r"stride_on 1x1: torchvision's ResNets .* have stride_on 3x3 alone"):
        export_weights(by_state)


def test_wrappers_and_old_files_without_counters_are_welcome():
    theirs = make("torchvision", "resnet18")
    wrapped = {f"_orig_mod.module.{key}": value for key, value in theirs.state_dict().items()}
    old = {key: value for key, value in wrapped.items() if not key.endswith("num_batches_tracked")}
    assert_same_logits(import_weights(old), theirs)
    assert list(without_wrappers({"module.a": torch.ones(1), "b": torch.ones(1)})) == ["module.a", "b"]


def test_nothing_is_shared_with_the_source():
    state = make("torchvision", "resnet18").state_dict()
    ours = import_weights(state)
    with torch.no_grad():
        ours.stem.conv.weight.zero_()
        ours.stem.act.norm.running_mean.zero_()
    assert state["conv1.weight"].abs().sum() > 0 and state["bn1.running_mean"].abs().sum() > 0
    assert ours.stem.conv.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", dict(order="full_preact"), "order full_preact: the weights are of a network with original"),
        ("resnet18", dict(num_classes=10), "num_classes 10: the weights are of a network with 7"),
        ("resnet18", dict(option="A"), "option A: the weights are of a network with B"),
        ("resnet18", dict(stage_units=(3, 4, 6, 3)), r"stage_units \(3, 4, 6, 3\)"),
        ("resnet18", dict(stride="1x1"), "option 'stride': unknown; nearest: stride_on"),
        ("resnetv2_18", dict(stem_order="act_first"), "stem_order act_first: .* with pool_first"),
        ("resnet18d", {}, "conv1.0.weight is of a stem of several convolutions"),
        ("resnetv2_50d", {}, "stem.conv1.weight is of a stem of several convolutions"),
        ("resnetv2_50x1_bit", {}, "not batch norm"),
        ("resnet50_gn", {}, "not batch norm"),
        ("seresnet18", {}, r"\.se\..* is of attention in the units"),
        ("resnext50_32x4d", {}, r"layer1\.0\.conv2\.weight is \(128, 4, 3, 3\), must be \(128, 128, 3, 3\)"),
        ("mobilenetv3_small_050", {}, "are not those of torchvision's ResNets"),
    ],
)
def test_another_network_is_refused_by_name(name, options, message):
    with torch.device("meta"):
        theirs = timm.create_model(name, num_classes=7)
    with pytest.raises(UsageError, match=message):
        import_weights(theirs.state_dict(), **options)


def change_eps(model: nn.Module) -> None:
    model.layer3[1].bn2.eps = 1e-3


def change_activation(model: nn.Module) -> None:
    model.layer2[1].relu = nn.SiLU()


def change_pooling(model: nn.Module) -> None:
    model.maxpool = nn.AvgPool2d(3, 2, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [(change_eps, r"eps 0\.001 of layer3\.1\.bn2; must be 1e-05"), (change_activation, "computes other logits"),
     (change_pooling, "computes other logits")],
)  # fmt: skip
def test_a_module_that_computes_something_else_is_refused(change, message):
    theirs = make("torchvision", "resnet18")
    import_weights(theirs)
    change(theirs)
    with pytest.raises(UsageError, match=message):
        import_weights(theirs)


def without(key: str):
    return lambda state: {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state | {"extra": torch.zeros(1)}, "extra has no place"),
        (without("layer2.0.conv1.weight"), r"layer2\.0\.conv1\.weight is missing"),
        (without("layer1.0.conv1.weight"), r"first unit has no conv1\.weight"),
        (without("fc.weight"), r"fc\.weight is missing"),
        (lambda state: state | {"epoch": 3}, "'epoch' holds int"),
        (lambda state: state | {"conv1.weight": torch.zeros(64, 3, 3, 3)}, "only the 7x7 stem"),
        (lambda state: {}, "names .none, ...."),
    ],
)
def test_damaged_weights_are_refused_by_name(change, message):
    with torch.device("meta"):
        state = torchvision.models.resnet18().state_dict()
    with pytest.raises(UsageError, match=message):
        import_weights(change(state))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet18", dict(option="A"), "option A: torchvision's ResNets and timm's resnet. have option B alone"),
        ("resnet18", dict(order="relu_only_preact"), "order relu_only_preact: torchvision and timm have only original"),
        ("preact_resnet18", {}, "stem_order act_first: timm's resnetv2_. have stem_order pool_first alone"),
        ("resnet20_cifar", {}, "stem cifar"),
        ("resnet18", dict(norm="group"), "norm group"),
        ("resnet18", dict(shortcut="dropout"), "shortcut dropout"),
        ("resnet18", dict(scale="rezero"), "scale rezero"),
        ("densenet40_k12_cifar", {}, "model DenseNet: torchvision and timm have only our ResNet"),
    ],
)
def test_what_they_have_not_is_not_exported(name, options, message):
    with torch.device("meta"):
        ours = create_model(name, **options)
    with pytest.raises(UsageError, match=message):
        export_weights(ours)
