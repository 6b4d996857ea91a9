"""How branches are kept small: Fixup's formulas, starts at the shortcut, and that no branch stays dead."""

import math

import pytest
import torch
from torch import Tensor, nn

from tests.nn.comparison import random_images, randomise, trace
from verydeep import ResNet, ResNetSpec, create_model
from verydeep.nn.init import he_std
from verydeep.nn.scale import Multiplier, ScalarBias, fixup_scale

FIXUP = dict(scale="fixup", norm="none")
ZERO_STARTS = {
    "zero_init": dict(scale="zero_init"),
    "zero_init-no_norm": dict(scale="zero_init", norm="none"),
    "zero_init-layer": dict(scale="zero_init", norm="layer"),
    "skipinit": dict(scale="skipinit", norm="none"),
    "rezero": dict(scale="rezero"),
    "fixup": FIXUP,
}
ORDERS_OF_ZERO_STARTS = [
    (start, order, unit)
    for start in ZERO_STARTS
    for order in ("original", "bn_after_addition", "relu_only_preact", "full_preact")
    for unit in ("one_layer", "basic", "bottleneck")
    if not (order == "bn_after_addition" and ZERO_STARTS[start].get("norm") == "none")
    if not (start == "fixup" and unit == "one_layer")
]


def small(**options) -> ResNet:
    torch.manual_seed(0)
    return ResNet(ResNetSpec(stage_units=(2, 2), width=4, **options)).double()


def branch_convs(model: ResNet) -> list[nn.Conv2d]:
    return [module for unit in model.units() for module in unit.branch.modules() if isinstance(module, nn.Conv2d)]


def without_branches(model: ResNet, images: Tensor) -> Tensor:
    """The network of shortcuts alone."""
    x = model.stem(images)
    for unit in model.units():
        activated = x if unit.preact is None else unit.preact(x)
        x = unit.shortcut(activated if unit.share_preact else x)
        x = x if unit.postact is None else unit.postact(x)
    return model.head(x)


@pytest.mark.parametrize(("start", "order", "unit"), ORDERS_OF_ZERO_STARTS)
def test_network_starts_as_its_shortcuts_and_every_branch_learns(start, order, unit):
    model = small(order=order, unit=unit, **ZERO_STARTS[start])
    if start == "fixup":  # its head starts at zero too, which would make any two networks agree
        nn.init.normal_(model.head.linear.weight, std=0.1)
    images, labels = random_images(8, 3, 8, 8), torch.arange(8)
    torch.testing.assert_close(model(images), without_branches(model, images), atol=1e-12, rtol=1e-12)
    starts = [conv.weight.detach().clone() for conv in branch_convs(model)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):  # the first step moves what was zero, the second what stood behind it
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    for number, (conv, start_of_it) in enumerate(zip(branch_convs(model), starts, strict=True)):
        assert (conv.weight != start_of_it).any(), f"convolution {number} of the branches has not moved"


@pytest.mark.parametrize("order", ["original", "relu_before_addition", "full_preact"])
def test_inverse_sqrt_divides_each_branch_by_the_square_root_of_the_number_of_units(order):
    scaled, plain = small(order=order, scale="inverse_sqrt"), small(order=order)
    scaled.load_state_dict(plain.state_dict())  # the factor is no weight
    x = random_images(2, 4, 4, 4)
    for ours, theirs in zip(scaled.stages[0], plain.stages[0], strict=True):
        torch.testing.assert_close(ours.branch(x), theirs.branch(x) / 2, atol=1e-14, rtol=1e-14)  # K = 4


def test_inverse_sqrt_survives_a_build_without_memory():
    with torch.device("meta"):
        model = ResNet(ResNetSpec(stage_units=(1, 1, 1), width=2, scale="inverse_sqrt"))
    model.to_empty(device="cpu")
    multiplier = next(model.units()).branch.multiplier
    assert multiplier(torch.ones(1)).item() == pytest.approx(1 / math.sqrt(3))


@pytest.mark.parametrize(
    ("start", "value"), [("skipinit", 0.0), ("rezero", 0.0), ("fixup", 1.0)], ids=["skipinit", "rezero", "fixup"]
)
def test_one_learnt_multiplier_ends_each_branch(start, value):
    model = small(unit="bottleneck", **ZERO_STARTS[start])
    multipliers = [module for module in model.modules() if isinstance(module, Multiplier)]
    assert len(multipliers) == 4
    for unit, multiplier in zip(model.units(), multipliers, strict=True):
        assert list(unit.branch)[-1] is multiplier
        assert isinstance(multiplier.weight, nn.Parameter)
        assert multiplier.weight.shape == ()
        assert multiplier.weight.item() == value


@pytest.mark.parametrize(
    ("order", "zeroed"),
    [
        ("original", "norm2"),
        ("bn_after_addition", "conv2"),
        ("relu_only_preact", "norm2"),
        ("full_preact", "conv2"),
    ],
)
def test_zero_init_zeroes_one_tensor_of_a_branch(order, zeroed):
    for unit in small(order=order, scale="zero_init").units():
        zeros = [name for name, p in unit.branch.named_parameters() if "weight" in name and (p == 0).all()]
        assert zeros == [f"{zeroed}.weight"]


@pytest.mark.parametrize(
    ("num_units", "num_layers", "factor"),
    [(54, 2, 0.136083), (54, 3, 0.368894), (16, 2, 0.25), (81, 3, 1 / 3), (1, 2, 1.0)],
)
def test_fixup_scale_known_answers(num_units, num_layers, factor):
    assert fixup_scale(num_units, num_layers) == pytest.approx(factor, rel=1e-5)


@pytest.mark.parametrize(("unit", "num_layers"), [("basic", 2), ("bottleneck", 3)])
def test_fixup_weights(unit, num_layers):
    """He's std times L^(-1/(2m-2)) in a branch, but zero in its last convolution and in the head."""
    torch.manual_seed(0)
    model = ResNet(ResNetSpec(stage_units=(3, 3), width=64, unit=unit, **FIXUP))
    factor = 6 ** (-1 / (2 * num_layers - 2))
    for branch in (unit.branch for unit in model.units()):
        *convs, last = [module for module in branch if isinstance(module, nn.Conv2d)]
        assert len(convs) == num_layers - 1
        assert (last.weight == 0).all()
        for conv in convs:
            tolerance = 5 / math.sqrt(2 * conv.weight.numel())  # 5 standard errors
            assert conv.weight.std().item() == pytest.approx(he_std(conv) * factor, rel=tolerance)
    assert (model.head.linear.weight == 0).all()
    assert (model.head.linear.bias == 0).all()
    assert model.stem.conv.weight.std().item() == pytest.approx(he_std(model.stem.conv), rel=0.1)  # unscaled
    assert not any("norm" in type(module).__name__.lower() for module in model.modules() if not list(module.children()))


@pytest.mark.parametrize(
    ("order", "unit", "operations"),
    [
        ("original", "basic", "W b ReLU b W b ReLU b W a h b ReLU b fc"),
        ("relu_only_preact", "basic", "W b ReLU b W b ReLU b W a h b ReLU b fc"),
        ("full_preact", "basic", "W b ReLU b W b ReLU b W a h b ReLU b fc"),
        ("full_preact", "bottleneck", "W b ReLU b W b ReLU b W b ReLU b W a b W b ReLU b fc"),
    ],
)
def test_fixup_has_a_scalar_bias_before_each_activation_convolution_and_linear_layer(order, unit, operations):
    """The image aside, to which the stem's own convolution is applied directly."""
    model = ResNet(ResNetSpec(stage_units=(1,), width=4, unit=unit, option="B", order=order, **FIXUP)).double()
    assert trace(model, random_images(2, 3, 8, 8)) == operations
    biases = [module.bias for module in model.modules() if isinstance(module, ScalarBias)]
    assert all(bias.shape == () and bias.item() == 0 for bias in biases)
    assert len(biases) == operations.split().count("b")
    assert all(m.bias is None for m in model.modules() if isinstance(m, nn.Conv2d))


def test_fixup_logits_are_zero_at_the_start():
    with torch.no_grad():
        logits = create_model("resnet20_cifar", width=4, **FIXUP)(torch.randn(2, 3, 8, 8))
    assert torch.equal(logits, torch.zeros(2, 10))


@pytest.mark.parametrize("unit", ["basic", "bottleneck"])
def test_fixup_wakes_from_the_head_backwards(unit):
    """Step 1 moves the head alone, step 2 each branch's last convolution, step 3 what stands before it."""
    model = small(unit=unit, **FIXUP)
    images, labels = random_images(8, 3, 8, 8), torch.arange(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    convs, last = branch_convs(model), [list(unit.branch)[-2] for unit in model.units()]
    moved = []
    for _ in range(3):
        before = [conv.weight.detach().clone() for conv in convs]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        moved.append([conv for conv, weight in zip(convs, before, strict=True) if (conv.weight != weight).any()])
    assert moved == [[], last, convs]
    assert model.head.linear.weight.any()


def test_multiplier_and_scalar_bias_formulas():
    x = random_images(2, 3, 4, 4)
    multiplier, bias = Multiplier(1.5).double(), ScalarBias().double()
    randomise(bias)
    assert torch.equal(multiplier(x), 1.5 * x)
    assert torch.equal(bias(x), x + bias.bias)
    assert bias.bias.item() != 0
    assert list(Multiplier(0.5, learnable=False).parameters()) == []
