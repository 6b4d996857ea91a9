"""Networks by name: published numbers of parameters, depths and units, and names that do not exist."""

import re

import pytest
import torch
from torch import nn

from verydeep import ResNet, UsageError, create_model, list_models
from verydeep.models.catalogue import FAMILIES, MODELS, OPTIONS, RESNETS, describe, model_spec


def without_memory(name: str, **options) -> ResNet:
    with torch.device("meta"):
        return create_model(name, **options)


def num_parameters(name: str, **options) -> int:
    return sum(parameter.numel() for parameter in without_memory(name, **options).parameters())


# 10 classes; v1 is the original order (a projection is convolution and norm), v2 full pre-activation (convolution)
CIFAR_PARAMETERS = {
    ("resnet", "A"): {20: 269722, 56: 853018, 110: 1727962, 1202: 19421274, 164: 1661274, 1001: 10285722},
    ("resnet", "B"): {20: 272474, 56: 855770, 110: 1730714, 1202: 19424026, 164: 1704154, 1001: 10328602},
    ("preact_resnet", "A"): {20: 269722, 56: 853018, 110: 1727962, 1202: 19421274, 164: 1661274, 1001: 10285722},
    ("preact_resnet", "B"): {20: 272282, 56: 855578, 110: 1730522, 1202: 19423834, 164: 1703258, 1001: 10327706},
}
IMAGENET_PARAMETERS = {
    "resnet": {50: 25557032, 101: 44549160, 152: 60192808, 200: 64673832},
    "preact_resnet": {50: 25549352, 101: 44541480, 152: 60185128, 200: 64666152},
}


@pytest.mark.parametrize(
    ("prefix", "option", "depth", "count"),
    [
        (prefix, option, depth, count)
        for (prefix, option), counts in CIFAR_PARAMETERS.items()
        for depth, count in counts.items()
    ],
)
def test_published_parameters_on_cifar(prefix, option, depth, count):
    assert num_parameters(f"{prefix}{depth}_cifar", option=option) == count


@pytest.mark.parametrize(
    ("prefix", "depth", "count"),
    [(prefix, depth, count) for prefix, counts in IMAGENET_PARAMETERS.items() for depth, count in counts.items()],
)
def test_published_parameters_on_imagenet(prefix, depth, count):
    assert num_parameters(f"{prefix}{depth}") == count


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 11689512),
        ("resnet34", 21797672),
        ("wide_resnet50_2", 68883240),
        ("wide_resnet101_2", 126886696),
        ("wide_resnet28_10_cifar", 36479194),
    ],
)
def test_parameters_of_other_networks(name, count):
    """torchvision's counts; Zagoruyko and Komodakis 2016 say 36.5M for the last."""
    assert num_parameters(name) == count


@pytest.mark.parametrize(("depth", "option"), [(20, "A"), (110, "A"), (164, "B"), (1001, "B"), (1202, "A")])
@pytest.mark.parametrize("prefix", ["resnet", "preact_resnet"])
def test_basic_networks_pad_and_bottlenecks_project(prefix, depth, option):
    assert model_spec(f"{prefix}{depth}_cifar").option == option


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "preact_resnet18", "preact_resnet200"])
def test_imagenet_networks_project_and_stride_on_the_1x1(name):
    spec = model_spec(name)
    assert (spec.option, spec.stride_on, spec.num_classes, spec.width) == ("B", "1x1", 1000, 64)


@pytest.mark.parametrize(
    ("name", "units", "unit"),
    [
        ("resnet18", (2, 2, 2, 2), "basic"),
        ("resnet34", (3, 4, 6, 3), "basic"),
        ("resnet50", (3, 4, 6, 3), "bottleneck"),
        ("resnet101", (3, 4, 23, 3), "bottleneck"),
        ("preact_resnet152", (3, 8, 36, 3), "bottleneck"),
        ("preact_resnet200", (3, 24, 36, 3), "bottleneck"),
        ("resnet110_cifar", (18, 18, 18), "basic"),
        ("plain56_cifar", (9, 9, 9), "basic"),
        ("resnet164_cifar", (18, 18, 18), "bottleneck"),
        ("preact_resnet1001_cifar", (111, 111, 111), "bottleneck"),
        ("resnet1202_cifar", (200, 200, 200), "basic"),
        ("wide_resnet28_10_cifar", (4, 4, 4), "basic"),
        ("wide_resnet40_4_cifar", (6, 6, 6), "basic"),
    ],
)
def test_units_of_a_stage(name, units, unit):
    spec = model_spec(name)
    assert (spec.stage_units, spec.unit) == (units, unit)


def test_one_layer_units_of_110_layers():
    model = without_memory("resnet110_cifar", unit="one_layer")
    assert len(list(model.units())) == 108
    assert model.spec.depth == 110
    assert all(sum(isinstance(m, nn.Conv2d) for m in unit.branch.modules()) == 1 for unit in model.units())


@pytest.mark.parametrize("name", RESNETS)
def test_listed_models_build_without_memory_and_have_the_depth_of_their_name(name):
    model = without_memory(name)
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    convs = [m for unit in model.units() for m in unit.branch.modules() if isinstance(m, nn.Conv2d)]
    assert model.spec.depth == len(convs) + 2
    depth = int(re.search(r"\d+", name)[0])
    # wide CIFAR networks are named 6n+4: their authors count two projections
    assert model.spec.depth == (depth - 2 if re.fullmatch(r"wide_resnet.*_cifar", name) else depth)


@pytest.mark.parametrize("name", RESNETS)
def test_order_and_shortcut_follow_the_name(name):
    spec = model_spec(name)
    preact = name.startswith("preact_") or re.fullmatch(r"wide_resnet.*_cifar", name)
    assert spec.order == ("full_preact" if preact else "original")
    assert spec.shortcut == ("none" if name.startswith("plain") else "identity")


def test_plain_networks_add_nothing():
    assert all(unit.shortcut is None for unit in create_model("plain20_cifar", width=2).units())


def test_list_of_models():
    assert len(set(MODELS)) == len(MODELS)
    assert list_models() == list(MODELS)
    assert list_models("preact_resnet1*_cifar") == [f"preact_resnet{depth}_cifar" for depth in (110, 164, 1001, 1202)]
    assert list_models("wide") == [name for name in MODELS if name.startswith("wide")]
    assert list_models("resnet50") == ["resnet50", "preact_resnet50", "wide_resnet50_2", "nf_resnet50"]
    assert list_models("vgg*") == []


def test_each_family_is_listed_and_each_listed_name_is_of_one_family():
    families = {name: [pattern for pattern in FAMILIES if re.fullmatch(pattern, name)] for name in RESNETS}
    assert all(len(patterns) == 1 for patterns in families.values())
    assert {patterns[0] for patterns in families.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", ["resnet8_cifar", "preact_resnet11_cifar", "plain1202_cifar", "wide_resnet10_1_cifar"])
def test_depths_that_are_not_listed_resolve(name):
    assert name not in MODELS
    assert num_parameters(name) > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "resnet100_cifar",
            "depth 100: CIFAR networks have depth 6n+2 (basic; nearest 98, 104) or 9n+2 (bottleneck; nearest 92, 101)",
        ),
        ("plain21_cifar", "depth 21: CIFAR networks have depth 6n+2 (basic; nearest 20, 26) or 9n+2"),
        ("resnet51", "depth 51: ImageNet networks have depth 18, 34, 50, 101, 152, 200"),
        ("wide_resnet30_10_cifar", "depth 30: wide CIFAR networks have depth 6n+4 (nearest 28, 34)"),
        ("wide_resnet4_10_cifar", "depth 4: wide CIFAR networks have depth 6n+4 (nearest 10, 16)"),
        ("wide_resnet34_2", "depth 34: wide ImageNet networks are bottlenecks, of depth 50, 101, 152 or 200"),
        ("preactresnet110_cifar", "model 'preactresnet110_cifar': unknown; nearest: preact_resnet110_cifar"),
        ("resnet20_cifarr", "model 'resnet20_cifarr': unknown; nearest: resnet20_cifar"),
    ],
)
def test_names_that_do_not_exist_say_what_does(name, message):
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        create_model(name)


def test_unknown_options_name_the_nearest():
    with pytest.raises(UsageError, match="option 'num_class': unknown; nearest: num_classes"):
        create_model("resnet20_cifar", num_class=5)


def test_options_reach_the_network():
    model = create_model("resnet20_cifar", num_classes=7, in_channels=1, width=4, norm="group", order="full-preact")
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 7)
    assert isinstance(model.stem.act.norm, nn.GroupNorm)
    assert model.spec.order == "full_preact"
    assert {"num_classes", "in_channels", "order", "unit", "shortcut", "option", "norm", "scale", "widen"} < set(
        OPTIONS
    )


def test_description_counts_without_memory():
    assert describe("preact_resnet1001_cifar") == {
        "name": "preact_resnet1001_cifar",
        "depth": 1001,
        "units": 333,
        "unit": "bottleneck",
        "order": "full_preact",
        "params": 10327706,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(gate_bias=-6.0), "gate_bias -6.0: is for shortcut exclusive_gate or shortcut_gate, not identity"),
        (dict(shortcut_scale=0.5), "shortcut_scale 0.5: is for shortcut constant, not identity"),
        (dict(norm=None), "norm None: must be a name; one of batch, layer, group, instance, rms, none"),
        (dict(unit="bottleneck", num_classes="10"), "num_classes 10: must be at least 1, a whole number"),
    ],
)
def test_options_that_do_nothing_or_are_of_another_type(options, message):
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        create_model("resnet20_cifar", **options)
