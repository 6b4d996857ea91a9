"""Whole networks: against `tests/reference.py`, Fig. 5, the first and last unit, sizes of maps, stochastic depth."""

import copy
import pickle
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torchvision.ops import StochasticDepth

from tests import reference
from tests.nn.comparison import assert_agree, random_images, randomise, trace
from verydeep import ResNet, ResNetSpec, create_model
from verydeep.nn.unit import make_unit

ORDERS = ["original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "full_preact"]
UNITS = ["one_layer", "basic", "bottleneck"]
SHORTCUTS = ["identity", "none", "constant", "exclusive_gate", "shortcut_gate", "conv1x1", "dropout"]
FAMILIES = {
    "cifar-A": dict(stage_units=(2, 1, 2), option="A"),
    "cifar-B": dict(stage_units=(2, 1, 2), option="B"),
    "imagenet-B": dict(stage_units=(1, 2, 1, 1), option="B", stem="imagenet"),
}


def build(*, training: bool = True, **options) -> tuple[ResNet, ResNetSpec]:
    """A narrow network in float64, with random weights and running statistics."""
    torch.manual_seed(0)
    spec = ResNetSpec(**(dict(stage_units=(1, 2), width=4) | options))
    model = ResNet(spec).double().train(training)
    randomise(model, std=0.2)
    return model, spec


def images_for(spec: ResNetSpec) -> torch.Tensor:
    """Of odd size; large enough for 3 positions a side at the end."""
    size = 9 if spec.stem == "cifar" else 33
    return random_images(3, 3, size, size)


def assert_agrees(**options) -> None:
    model, spec = build(**options)
    assert_agree(model, lambda x: reference.network(model, spec, x), images_for(spec))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("order", ORDERS)
def test_network_equals_reference(order, unit, family, training):
    assert_agrees(order=order, unit=unit, training=training, **FAMILIES[family])


@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_network_of_every_shortcut_equals_reference(order, shortcut):
    assert_agrees(order=order, shortcut=shortcut, training=shortcut != "dropout", stage_units=(2, 2))


@pytest.mark.parametrize("norm", ["layer", "group", "instance", "rms"])
@pytest.mark.parametrize("order", ORDERS)
def test_network_of_every_norm_equals_reference(order, norm):
    assert_agrees(order=order, norm=norm, option="B")


@pytest.mark.parametrize("scale", ["none", "inverse_sqrt", "zero_init", "skipinit", "rezero", "fixup"])
@pytest.mark.parametrize("order", ["original", "relu_only_preact", "full_preact"])
def test_network_without_norms_of_every_scale_equals_reference(order, scale):
    assert_agrees(order=order, scale=scale, norm="none", option="B")


@pytest.mark.parametrize("order", ["original", "full_preact"])
def test_network_of_other_widths_equals_reference(order):
    assert_agrees(order=order, unit="bottleneck", widen=1.5, bottleneck_widen=2, stride_on="3x3", option="B")
    assert_agrees(order=order, widen=2, option="A")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("order", ["relu_only_preact", "full_preact"])
def test_asymmetric_post_activation_is_pre_activation(order, unit, family, training):
    """Fig. 5: f^ after the addition on the branch's path alone, recast as the next unit's pre-activation."""
    model, spec = build(order=order, unit=unit, training=training, **FAMILIES[family])
    assert_agree(model, lambda x: reference.asymmetric_network(model, spec, x), images_for(spec))


OPERATIONS = {
    "original": "W BN ReLU | W BN ReLU W BN h ReLU | W BN ReLU W BN h ReLU | fc",
    "bn_after_addition": "W BN ReLU | W BN ReLU W h BN ReLU | W BN ReLU W h BN ReLU | fc",
    "relu_before_addition": "W BN ReLU | W BN ReLU W BN ReLU h | W BN ReLU W BN ReLU h | fc",
    "relu_only_preact": "W BN ReLU | W BN ReLU W BN h | ReLU W BN ReLU W BN h | ReLU fc",
    "full_preact": "W BN ReLU | W BN ReLU W h | BN ReLU W BN ReLU W h | BN ReLU fc",
}


@pytest.mark.parametrize("order", ORDERS)
def test_operations_of_a_network_of_two_units(order):
    """One BN-ReLU between the stem's convolution and the first split, none doubled, an extra one after the last."""
    model, _ = build(stage_units=(2,), order=order)
    assert trace(model, random_images(2, 3, 8, 8)) == OPERATIONS[order].replace(" |", "")


@pytest.mark.parametrize("order", ["original", "full_preact"])
def test_imagenet_stem_activates_then_pools_then_splits(order):
    model, _ = build(stage_units=(1,), order=order, stem="imagenet")
    assert trace(model, random_images(2, 3, 16, 16)).startswith("W BN ReLU pool W BN ReLU W ")
    assert (model.stem.conv.kernel_size, model.stem.conv.stride) == ((7, 7), (2, 2))


@pytest.mark.parametrize("order", ["relu_only_preact", "full_preact"])
def test_first_unit_splits_after_the_stems_activation(order):
    model, _ = build(stage_units=(2,), order=order)
    seen = []
    first = next(model.units())
    for side in (first.branch, first.shortcut):
        side.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(random_images(2, 3, 8, 8))
    assert seen[0] is seen[1]
    assert (seen[0] >= 0).all()  # what a ReLU has passed


@pytest.mark.parametrize(
    ("order", "option", "count"),
    [
        # 9 units of 2 norms, and the stem's; option B projects twice
        ("original", "A", 19),
        ("original", "B", 21),
        ("bn_after_addition", "A", 19),
        ("bn_after_addition", "B", 19),
        ("relu_before_addition", "A", 19),
        ("relu_before_addition", "B", 21),
        ("relu_only_preact", "A", 19),
        ("relu_only_preact", "B", 21),
        # the first unit's is the stem's, and the head has one more
        ("full_preact", "A", 19),
        ("full_preact", "B", 19),
    ],
)
def test_number_of_norms_of_a_20_layer_network(order, option, count):
    model = create_model("resnet20_cifar", order=order, option=option, width=2)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == count


def output_sizes(model: ResNet, size: int) -> list[int]:
    """Heights after the stem's activation, the stem, and each stage, without arithmetic."""
    sizes: list[int] = []
    for module in (model.stem.act, model.stem, *model.stages):
        module.register_forward_hook(lambda _, __, output: sizes.append(output.shape[-2]))
    model(torch.empty(2, 3, size, size, device="meta"))
    return sizes


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "preact_resnet50"])
@pytest.mark.parametrize(
    ("size", "sizes"), [(224, [112, 56, 56, 28, 14, 7]), (320, [160, 80, 80, 40, 20, 10])], ids=["224", "320"]
)
def test_sizes_of_maps_on_imagenet(name, size, sizes):
    with torch.device("meta"):
        assert output_sizes(create_model(name), size) == sizes


@pytest.mark.parametrize(
    ("size", "sizes"), [(32, [32, 32, 32, 16, 8]), (28, [28, 28, 28, 14, 7]), (9, [9, 9, 9, 5, 3])]
)
@pytest.mark.parametrize("name", ["resnet20_cifar", "preact_resnet164_cifar"])
def test_sizes_of_maps_on_cifar(name, size, sizes):
    with torch.device("meta"):
        assert output_sizes(create_model(name), size) == sizes


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_stride_2_only_in_the_first_unit_of_later_stages(kind):
    with torch.device("meta"):
        model = ResNet(ResNetSpec(stage_units=(2, 2, 2), unit=kind, option="B"))
    strided = [name for name, module in model.named_modules() if getattr(module, "stride", 1) == (2, 2)]
    units = ("stages.1.0", "stages.2.0")
    assert strided == [f"{unit}.{module}" for unit in units for module in ("branch.conv1", "shortcut.conv")]


def drops(model: ResNet) -> list[float]:
    return [module.p for module in model.modules() if isinstance(module, StochasticDepth)]


def test_survival_of_54_units():
    with torch.device("meta"):
        survival = [1 - p for p in drops(create_model("resnet110_cifar", stochastic_depth=0.5))]
    assert len(survival) == 54
    assert survival[0] == pytest.approx(0.990741, abs=1e-6)
    assert survival[-1] == 0.5
    assert sum(survival) == pytest.approx(40.25)
    assert survival == sorted(survival, reverse=True)


def test_stochastic_depth_of_one_unit():
    model, _ = build(stage_units=(1,), stochastic_depth=0.5)
    assert drops(model) == [0.5]
    assert model(random_images(2, 3, 8, 8)).isfinite().all()
    assert drops(build()[0]) == []


def test_expectation_in_training_is_the_output_in_evaluation():
    """Each of 4000 copies of an image draws for itself: x + F / .7 with probability .7, else x; x + F in evaluation."""
    spec = ResNetSpec(stage_units=(1,), norm="none", order="full_preact")
    unit = make_unit(spec.unit_spec(), 4, 4, stride=1, num_units=1, drop=StochasticDepth(0.3, mode="row")).double()
    copies = 4000
    x = random_images(1, 4, 3, 3)
    torch.manual_seed(0)
    with torch.no_grad():
        trained = unit(x.expand(copies, -1, -1, -1))
        evaluated = unit.eval()(x)
    branch = evaluated - x
    kept = (trained - x).flatten(1).norm(dim=1) > 0
    torch.testing.assert_close(trained[kept], (x + branch / 0.7).expand(int(kept.sum()), -1, -1, -1))
    assert torch.equal(trained[~kept], x.expand(int((~kept).sum()), -1, -1, -1))
    deviation = branch.abs() * (0.3 / 0.7 / copies) ** 0.5  # of the mean over the copies
    assert ((trained.mean(0, keepdim=True) - evaluated).abs() < 5 * deviation).all()


@pytest.fixture
def recursion_limit() -> Iterator[None]:
    """Python's default, whatever the tests before have set."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("recursion_limit")
@pytest.mark.parametrize("order", ["original", "full_preact"])
@pytest.mark.parametrize("depth", [1001, 1202])
def test_a_thousand_layers(depth, order):
    """Built, copied, pickled, run forwards and backwards, at Python's default recursion limit."""
    torch.manual_seed(0)
    model = create_model(f"resnet{depth}_cifar", order=order, width=2)
    assert model.spec.depth == depth
    images = torch.randn(2, 3, 8, 8)
    copied = copy.deepcopy(model)
    pickled = pickle.loads(pickle.dumps(model))
    logits = model(images)
    assert torch.equal(pickled(images), logits)
    torch.nn.init.ones_(copied.head.linear.bias)
    assert not torch.equal(copied(images), logits)
    copied.load_state_dict(pickled.state_dict())
    assert torch.equal(copied(images), logits)
    logits.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert gradients[0].abs().sum() > 0
    assert len(repr(model)) > 100 * depth


def test_network_is_channels_last():
    model, _ = build(unit="bottleneck")
    assert model.stem.conv.weight.is_contiguous(memory_format=torch.channels_last)
    seen = []
    model.stages[0].register_forward_hook(lambda _, __, output: seen.append(output))
    model(images_for(model.spec))
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_units_from_stem_to_head():
    model, _ = build(stage_units=(2, 1, 3))
    assert list(model.units()) == [unit for stage in model.stages for unit in stage]
    assert len(list(model.units())) == model.spec.num_units == 6


@pytest.mark.parametrize("unit", ["basic", "bottleneck"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_network_built_for_224_takes_320(order: str, unit: str):
    """Fully convolutional: the same weights, the head's mean over 10 x 10 positions instead of 7 x 7."""
    model, spec = build(training=False, order=order, unit=unit, width=2, **FAMILIES["imagenet-B"])
    for size, side in ((224, 7), (320, 10)):
        images = random_images(1, 3, size, size)
        maps = []
        with torch.no_grad():
            handle = model.stages[-1].register_forward_hook(lambda *values, maps=maps: maps.append(values[-1]))
            logits = model(images)
            handle.remove()
            torch.testing.assert_close(logits, reference.network(model, spec, images))
        assert maps[0].shape[2:] == (side, side)
