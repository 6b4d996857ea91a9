"""Highway networks: against the formula written out, the source's parameter counts, and gates that carry."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.nn.comparison import assert_agree, random_images, randomise
from verydeep import UsageError
from verydeep.models.highway import Highway, HighwaySpec, highway_unit


def naive(model: Highway, images: Tensor) -> Tensor:
    """y = H T + x (1 - T), layer by layer."""
    weights = dict(model.named_parameters())
    conv = model.spec.conv

    def layer(x: Tensor, name: str) -> Tensor:
        w, b = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.conv2d(x, w, b, padding=1) if conv else x @ w.T + b

    x = torch.relu(layer(images if conv else images.flatten(1), f"stem.{0 if conv else 1}"))
    for index, module in enumerate(model.layers):
        if isinstance(module, torch.nn.MaxPool2d):
            windows = x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2].unfold(2, 2, 2).unfold(3, 2, 2)
            x = windows.amax((-1, -2))
            continue
        h = torch.relu(layer(x, f"layers.{index}.branch.0"))
        if model.spec.plain:
            x = h
            continue
        t = torch.sigmoid(layer(x, f"layers.{index}.shortcut.gate"))
        x = h * t + x * (1 - t)
    return x.flatten(1) @ weights["head.1.weight"].T + weights["head.1.bias"]


@pytest.mark.parametrize("plain", [False, True], ids=["highway", "plain"])
@pytest.mark.parametrize("conv", [False, True], ids=["linear", "conv"])
def test_network_equals_its_formula(conv, plain):
    torch.manual_seed(0)
    model = Highway(HighwaySpec(5, width=4, conv=conv, plain=plain, image_size=9, in_channels=2)).double()
    randomise(model)
    assert_agree(model, lambda images: naive(model, images), random_images(3, 2, 9, 9))


@pytest.mark.parametrize(("width", "thousands"), [(16, 39), (32, 151)])
def test_published_parameters_of_convolutional_networks(width, thousands):
    """Srivastava et al. 2015, Table 1: 10 layers, 39K and 151K."""
    model = Highway(HighwaySpec(8, width=width, conv=True))
    assert round(sum(p.numel() for p in model.parameters()) / 1000) == thousands
    assert model.spec.depth == 10


def test_highway_layer_of_50_units_has_about_the_parameters_of_a_plain_one_of_71():
    """Srivastava et al. 2015, section 3.1: about 5000 a layer."""
    counts = [
        sum(p.numel() for p in highway_unit(HighwaySpec(width=width, plain=plain)).parameters())
        for width, plain in [(50, False), (71, True)]
    ]
    assert counts == [5100, 5112]


@pytest.mark.parametrize("conv", [False, True], ids=["linear", "conv"])
def test_a_very_negative_gate_bias_carries_the_input(conv):
    model = Highway(HighwaySpec(6, width=4, conv=conv, gate_bias=-40.0, image_size=8)).double()
    x = random_images(2, 4, 6, 6) if conv else random_images(2, 4)
    for unit in model.units():
        torch.testing.assert_close(unit(x), x, atol=1e-12, rtol=0)


@pytest.mark.parametrize("conv", [False, True], ids=["linear", "conv"])
def test_gates_start_at_their_bias(conv):
    model = Highway(HighwaySpec(6, width=4, conv=conv, gate_bias=-3.0))
    units = list(model.units())
    assert len(units) == 6
    assert all((unit.shortcut.gate.bias == -3).all() and (unit.branch[0].bias == 0).all() for unit in units)


def gradient_of_the_first_layer(*, plain: bool) -> float:
    torch.manual_seed(0)
    model = Highway(HighwaySpec(100, width=20, plain=plain, gate_bias=-4.0, image_size=8))
    F.cross_entropy(model(torch.randn(16, 1, 8, 8)), torch.arange(16) % 10).backward()
    return model.stem[1].weight.grad.norm().item()


def test_a_hundred_layers_pass_a_gradient_where_the_plain_twin_loses_it():
    assert gradient_of_the_first_layer(plain=False) > 100 * gradient_of_the_first_layer(plain=True)


def test_images_of_another_size_and_too_small_ones_are_refused():
    model = Highway(HighwaySpec(2, width=4))
    with pytest.raises(UsageError, match="built for image_size 28"):
        model(torch.randn(1, 1, 27, 28))
    with pytest.raises(UsageError, match="image_size 7: three poolings leave nothing of it; nearest 8"):
        HighwaySpec(conv=True, image_size=7)
    with pytest.raises(UsageError, match="num_units 0: must be at least 1"):
        HighwaySpec(0)
