"""Joined convolutions: what may join does, and no memory that is still read is written over."""

import copy
from collections import OrderedDict

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from tests.fold.networks import trained
from verydeep import create_model, fold_batch_norm
from verydeep.nn.prediction import JoinedConv2d
from verydeep.nn.unit import ORDERS


def joined(module: nn.Module) -> list[JoinedConv2d]:
    return [part for part in module.modules() if isinstance(part, JoinedConv2d)]


@torch.no_grad()
def assert_same(model: nn.Module, folded: nn.Module, images: Tensor, *, rtol: float = 1e-5) -> None:
    """In float32, twice, as the first call may have written over what the second reads."""
    expected, before = model.eval()(images), images.clone()
    for _ in range(2):
        got = folded(images)
        assert (expected - got).norm() <= rtol * expected.norm()
    assert torch.equal(images, before)


def channels_last(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).contiguous(memory_format=torch.channels_last)


NETWORKS = {
    # name: (network, image size, sums that a convolution takes)
    "preact_resnet164_cifar": (lambda: create_model("preact_resnet164_cifar"), 32, 54),
    "resnet20_cifar, option A": (lambda: create_model("resnet20_cifar"), 16, 7),
    "exclusive gate": (lambda: create_model("resnet20_cifar", shortcut="exclusive_gate"), 16, 0),
    "torchvision resnet50": (torchvision.models.resnet50, 64, 16),
    "torchvision mobilenet_v2": (torchvision.models.mobilenet_v2, 64, 10),
    "torchvision densenet121": (torchvision.models.densenet121, 64, 0),
    "torchvision shufflenet": (torchvision.models.shufflenet_v2_x0_5, 64, 0),
    "timm resnetv2_50": (lambda: timm.create_model("resnetv2_50"), 64, 16),
    "timm res2net50": (lambda: timm.create_model("res2net50_26w_4s"), 64, 16),
    "timm ghostnet": (lambda: timm.create_model("ghostnet_100"), 64, 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_the_same_in_single_precision(name):
    make, size, sums = NETWORKS[name]
    model = trained(make()).float()
    folded = fold_batch_norm(model)
    assert_same(model, folded, channels_last(2, 3, size, size))
    taken = [node for node in folded.graph.nodes if node.op == "call_module" and len(node.args) == 2]
    assert len(taken) == sums


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("unit", ["basic", "bottleneck"])
def test_every_order(order, unit):
    model = trained(create_model("resnet20_cifar", order=order, unit=unit)).float()
    assert_same(model, fold_batch_norm(model), channels_last(2, 3, 16, 16))


class Model(nn.Module):
    """Two convolutions, and a computation that a test gives."""

    def __init__(self, compute) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.same, self.relu, self.narrow = nn.Identity(), nn.ReLU(inplace=True), nn.Conv2d(2, 4, 1)
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)


def of_view(m, x):
    y = m.first(x)
    half = y[:, :2]
    return m.narrow(half) + y


def read_later(m, x):
    y = m.first(x)
    z = m.second(y) + y
    return z * y.mean()


def changed_between(m, x):
    y = m.first(x)
    z = m.second(y)
    m.relu(y)
    return z + y


def changed_in_place(m, x):
    y = m.first(x)
    y += m.second(y)
    return F.relu(y)


def changed_in_place_for_all(m, x):
    y = F.max_pool2d(x, 1)
    z = y
    y += m.first(x)
    return 2 * y + z


def changed_in_place_last(m, x):
    y = m.first(x)
    y += m.narrow(m.second(F.max_pool2d(y, 1))[:, :2])
    return y


def taken_off_in_place(m, x):
    y = m.first(x)
    z = y
    y -= m.second(x)
    y *= 2
    return y + z


def of_an_alias(m, x):
    y = m.first(x)
    return F.relu(m.second(y) + m.same(y))


def of_an_alias_read_later(m, x):
    y = m.first(x)
    z = m.same(y)
    return (m.second(y) + y) + z


def of_its_relu(m, x):
    y = m.first(x)
    return m.second(F.relu(y)) + y


def of_the_input(m, x):
    return F.relu(m.first(x) + x)


def of_itself(m, x):
    y = m.first(x)
    return y + y


def of_a_number(m, x):
    return m.first(x) + 1.0


def of_half(m, x):
    return torch.add(m.first(x), x, alpha=0.5)


def of_two_results(m, x):
    y = m.first(x)
    z = m.second(y) + y
    return z, y


def after_two(m, x):
    y = m.first(x)
    return F.relu(m.same(y) + m.second(m.narrow(F.max_pool2d(y, 1)[:, :2])))


def broadcast(m, x):
    mean = F.adaptive_avg_pool2d(x, 1)
    return m.second(m.first(x)) + mean


def wider(m, x):
    return m.first(F.adaptive_avg_pool2d(x, 1)) + x


COMPUTATIONS = {
    # computation: (sums that a convolution takes, of which into the memory of the other operand)
    of_view: (1, 0), read_later: (1, 0), changed_between: (0, 0), changed_in_place: (0, 0), of_an_alias: (1, 0),
    changed_in_place_for_all: (0, 0), changed_in_place_last: (1, 1), taken_off_in_place: (0, 0),
    of_an_alias_read_later: (1, 0), of_its_relu: (1, 0), of_the_input: (1, 0), of_itself: (0, 0), of_a_number: (0, 0),
    of_half: (0, 0), of_two_results: (1, 0), after_two: (1, 1), broadcast: (1, 1), wider: (1, 0),
}  # fmt: skip


@pytest.mark.parametrize("compute", COMPUTATIONS, ids=lambda compute: compute.__name__)
def test_memory_that_is_read_is_not_written_over(compute):
    torch.manual_seed(0)
    model = Model(compute)
    folded = fold_batch_norm(model)
    images = channels_last(2, 4, 8, 8)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(folded(images), model(images), rtol=1e-5, atol=1e-6)
    taken = [node for node in folded.graph.nodes if node.op == "call_module" and len(node.args) == 2]
    assert (len(taken), sum(part.overwrites for part in joined(folded))) == COMPUTATIONS[compute]


def test_a_folded_network_has_gradients_of_its_own():
    model = trained(create_model("preact_resnet20_cifar")).float().eval()
    folded = fold_batch_norm(model)
    images = channels_last(2, 3, 16, 16)
    mine, theirs = images.clone().requires_grad_(), images.clone().requires_grad_()
    with torch.no_grad():
        folded(images)
    folded(mine).square().sum().backward()
    model(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-3 * float(theirs.grad.abs().max()))


@pytest.mark.parametrize("channels", [1, 3, 16])
@pytest.mark.parametrize("place", ["input", "weight"])
@torch.no_grad()
def test_nan_stays_nan(channels, place):
    """A diverged network must not predict as if nothing were wrong."""
    norms = [nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16), nn.ReLU()]
    model = trained(nn.Sequential(nn.Conv2d(channels, 16, 3), *norms, nn.Conv2d(16, 8, 1), nn.ReLU())).float().eval()
    model.to(memory_format=torch.channels_last)
    images, folded = channels_last(2, channels, 6, 6), fold_batch_norm(model)
    if place == "input":
        images[1, 0, 2, 2] = torch.nan
    else:
        for network in (model, folded):
            network.get_submodule("0").weight[3, 0, 1, 1] = torch.nan
    assert model(images).isnan().any()
    assert torch.equal(folded(images).isnan(), model(images).isnan())


class Flattening(nn.Module):
    """`view` asks for a memory format."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8 * 36, 5)

    def forward(self, x):
        return self.linear(F.relu(self.norm(input=self.conv(x))).view(x.size(0), -1))


@torch.no_grad()
def test_results_keep_their_memory_format():
    model = trained(Flattening()).float()
    assert_same(model, fold_batch_norm(model), torch.randn(2, 3, 6, 6))
    grey = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())
    assert fold_batch_norm(grey)(torch.randn(2, 1, 6, 6)).is_contiguous()
    weights = fold_batch_norm(torchvision.models.resnet18()).parameters()
    assert all(weight.is_contiguous() for weight in weights)


def test_weights_of_another_call():
    folded = fold_batch_norm(trained(create_model("resnet20_cifar")).float())
    images, state = channels_last(2, 3, 16, 16), {name: value.clone() for name, value in folded.state_dict().items()}
    for factor in (1.0, 1.1, 1.2, 1.3, 1.0):
        scaled = {name: factor * value for name, value in state.items()}
        expected = torch.func.functional_call(folded, scaled, (images,)).detach()
        with torch.no_grad():
            got = torch.func.functional_call(folded, {name: factor * value for name, value in state.items()}, (images,))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_folded_in_inference_mode_it_still_has_gradients():
    with torch.inference_mode():
        folded = fold_batch_norm(trained(create_model("resnet20_cifar")).float())
    assert folded(channels_last(1, 3, 8, 8)).requires_grad


@pytest.mark.parametrize("name", ["conv", "norm", "act", "tap"])
@torch.no_grad()
def test_hooks_fire_on_what_they_were_put_on(name):
    parts = {"conv": nn.Conv2d(4, 4, 1), "norm": nn.BatchNorm2d(4), "tap": nn.Identity(), "act": nn.ReLU()}
    model = trained(nn.Sequential(OrderedDict(parts))).float()
    getattr(model, name).register_forward_hook(lambda module, inputs, output: 2 * output + 1)
    assert_same(model, fold_batch_norm(model), channels_last(2, 4, 5, 5))


def test_copies_and_other_devices():
    folded = fold_batch_norm(trained(create_model("resnet20_cifar")).float())
    images = channels_last(2, 3, 16, 16)
    with torch.no_grad():
        expected = folded(images)
        assert torch.equal(copy.deepcopy(folded)(images), expected)
    assert folded.to("meta")(images.to("meta")).shape == (2, 10)
