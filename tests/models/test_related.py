"""Related designs by name: every listed name resolves and builds, specs round-trip, copies compute the same."""

import copy
import dataclasses
import pickle
import re

import pytest
import torch

from verydeep import UsageError
from verydeep.models.catalogue import FAMILIES, build_network, create_model, spec_from_dict, spec_to_dict
from verydeep.models.related import (
    RELATED_FAMILIES,
    RELATED_MODELS,
    is_related,
    related_spec,
)

SMALL = {
    "highway10": dict(width=6, image_size=8),
    "highway6_conv4": dict(image_size=8),
    "densenet10_k3_cifar": {},
    "densenet_bc16_k3_cifar": {},
    "densenet121": dict(block_layers=(1, 2), growth=4, num_classes=10),
    "nf_resnet8_cifar": dict(width=4),
    "nf_resnet50": dict(stage_units=(1, 1), width=4, num_classes=10),
}


def small(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return create_model(name, in_channels=1, **SMALL[name])


@pytest.mark.parametrize("name", RELATED_MODELS)
def test_listed_models_build_without_memory_with_the_depth_of_their_name(name):
    with torch.device("meta"):
        model = create_model(name)
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    depth = int(re.search(r"\d+", name)[0])
    # the linear highway networks are named without their output layer, as in their source's Fig. 1
    assert model.spec.depth == (depth + 1 if re.fullmatch(r"highway\d+", name) else depth)


def test_each_listed_name_is_of_one_family_and_each_family_is_listed():
    families = {name: [p for p in (*RELATED_FAMILIES, *FAMILIES) if re.fullmatch(p, name)] for name in RELATED_MODELS}
    assert all(len(patterns) == 1 for patterns in families.values())
    assert {patterns[0] for patterns in families.values()} == set(RELATED_FAMILIES)


def test_small_networks_are_of_every_family():
    assert {p for p in RELATED_FAMILIES for name in SMALL if re.fullmatch(p, name)} == set(RELATED_FAMILIES)


@pytest.mark.parametrize("name", SMALL)
def test_copies_pickles_states_and_specs_give_the_same_network(name):
    model = small(name)
    images = torch.randn(2, 1, 8 if "highway" in name else 32, 8 if "highway" in name else 32)
    model(images).sum().backward()
    model.eval()
    expected = model(images)
    assert expected.shape == (2, 10)
    again = build_network(spec_from_dict(spec_to_dict(model.spec)))
    again.load_state_dict(model.state_dict())
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), again):
        assert torch.equal(twin.eval()(images), expected)
    assert again.spec == model.spec


@pytest.mark.parametrize("name", SMALL)
def test_one_batch_is_learnt(name):
    model = small(name)
    size = 8 if "highway" in name else 16
    images, labels = torch.randn(10, 1, size, size), torch.arange(10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


@pytest.mark.parametrize("name", RELATED_MODELS)
def test_options_reach_the_spec(name):
    spec = related_spec(name, num_classes=7)
    assert spec == dataclasses.replace(related_spec(name), num_classes=7)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("densenet_bc101_k12_cifar", {}, "depth 101: DenseNet-BC for CIFAR has depth 6n+4 (nearest 100, 106)"),
        ("densenet122", {}, "depth 122: ImageNet DenseNets have depth"),
        ("nf_resnet51", {}, "depth 51: ImageNet NF-ResNets have depth 26, 50"),
        ("nf_resnet21_cifar", {}, "depth 21: CIFAR networks have depth 6n+2"),
        ("highway1", {}, "depth 1: leaves no highway layer; nearest 2"),
        ("densnet121", {}, "model 'densnet121': unknown; nearest: densenet121"),
        ("densenet121", {"grwth": 3}, "option 'grwth': unknown to densenet121; nearest: growth"),
    ],
)
def test_what_does_not_exist_says_what_does(name, options, message):
    with pytest.raises(UsageError, match="^" + re.escape(message)):
        create_model(name, **options)


def test_names_of_residual_networks_are_not_related():
    assert not any(is_related(name) for name in ("resnet110_cifar", "preact_resnet50", "wide_resnet28_10_cifar"))
