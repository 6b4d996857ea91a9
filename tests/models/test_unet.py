"""U-Net of residual units: against a naive one of reference units, sizes of maps, what is refused."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests import reference
from tests.nn.comparison import assert_agree, random_images, randomise
from verydeep import ResNetSpec, UsageError
from verydeep.models.unet import UNet

ORDERS = ["original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "full_preact"]


def build(**options) -> UNet:
    torch.manual_seed(0)
    spec = ResNetSpec(
        **(dict(stage_units=(1, 2, 1), width=4, option="B", order="full_preact", num_classes=3) | options)
    )
    return UNet(spec).double()


def naive(model: UNet, images: Tensor) -> Tensor:
    spec, unit_of = model.spec, reference.UNITS[model.spec.order]
    whole = reference.Unit(reference.tensors(model), spec, training=model.training, num_units=model.num_units)
    x, levels = reference.stem(whole, images), []
    for s, count in enumerate(spec.stage_units):
        for i in range(count):
            stride = 2 if s > 0 and i == 0 else 1
            x = unit_of(replace(whole, prefix=f"down.{s}.{i}.", stride=stride, first=(s, i) == (0, 0)), x)
        levels.append(x)
    for s, count in enumerate(spec.stage_units[-2::-1]):
        level = levels[-2 - s]
        up = f"up.{s}.upsample"
        x = torch.einsum("nchw,cdij->ndhiwj", x, whole[f"{up}.weight"]).flatten(4).flatten(2, 3)  # 2H x 2W
        x = x + whole[f"{up}.bias"].view(-1, 1, 1)
        x = torch.cat([level, x[:, :, : level.shape[2], : level.shape[3]]], 1)
        for i in range(count):
            x = unit_of(replace(whole, prefix=f"up.{s}.units.{i}."), x)
    if spec.order == "relu_only_preact":
        x = whole.relu("act", x)
    if spec.order == "full_preact":
        x = whole.norm_relu("act", x)
    return F.conv2d(x, whole["classify.weight"], whole["classify.bias"])


@pytest.mark.parametrize("unit", ["basic", "bottleneck"])
@pytest.mark.parametrize("order", ORDERS)
def test_network_equals_its_naive_twin(order, unit):
    model = build(order=order, unit=unit)
    randomise(model, std=0.2)
    assert_agree(model, lambda images: naive(model, images), random_images(2, 3, 9, 7))


@pytest.mark.parametrize("options", [dict(norm="group"), dict(norm="none", scale="skipinit"), dict(shortcut="none")])
def test_other_units_equal_the_naive_twin(options):
    model = build(**options)
    randomise(model, std=0.2)
    assert_agree(model, lambda images: naive(model, images), random_images(2, 3, 6, 5))


with torch.device("meta"):
    FOUR_LEVELS = UNet(ResNetSpec((1, 1, 1, 1), width=2, option="B", num_classes=5)).eval()


@settings(max_examples=40)
@given(height=st.integers(1, 33), width=st.integers(1, 33))
def test_every_size_of_image_gives_a_map_of_its_size(height, width):
    logits = FOUR_LEVELS(torch.empty(2, 3, height, width, device="meta"))
    assert logits.shape == (2, 5, height, width)


def test_way_down_halves_upwards_and_the_way_up_mirrors_it():
    model, sizes = build(), []
    for stage in [*model.down, *model.up]:
        stage.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    model(random_images(1, 3, 11, 6))
    assert sizes == [(4, 11, 6), (8, 6, 3), (16, 3, 2), (8, 6, 3), (4, 11, 6)]
    assert len(list(model.units())) == model.num_units == 4 + 3


def test_zero_branches_leave_only_shortcuts_and_learn():
    model = build(scale="zero_init", norm="none")
    units = [unit for unit in model.units() if unit.preact is not None and not unit.share_preact]
    x = {unit: random_images(1, unit.branch.conv1.in_channels, 3, 3) for unit in units}
    assert units
    assert all(torch.equal(unit(x[unit]), x[unit]) for unit in units)


def test_one_batch_is_learnt():
    torch.manual_seed(0)
    model = UNet(ResNetSpec((1, 1), width=8, option="B", order="full_preact", num_classes=2))
    images = torch.randn(4, 3, 10, 10)
    labels = (images.mean(1) > 0).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model(images).argmax(1) == labels).float().mean() > 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(stem="imagenet"), "stem imagenet: .* give cifar"),
        (dict(option="A"), "option A: .* give B"),
        (dict(stochastic_depth=0.5), "stochastic_depth 0.5: .* give 0"),
        (dict(scale="fixup", norm="none"), "scale fixup: .* give zero_init or skipinit"),
    ],
)
def test_what_a_unet_cannot_have_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        build(**options)
