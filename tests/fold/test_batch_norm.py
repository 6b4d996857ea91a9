"""Folding: the same function at prediction, the argument untouched, and no norm left that could go."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from tests.fold.networks import BATCH_NORM, trained
from verydeep import UsageError, create_model, fold_batch_norm
from verydeep.nn.norm import convert_batch_norm
from verydeep.nn.prediction import ScaleShift
from verydeep.nn.unit import ORDERS


def count(model: nn.Module, kind: type) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


def assert_same(model: nn.Module, folded: nn.Module, size: int, *, channels: int = 3, rtol: float = 1e-10) -> None:
    dtype = next(model.parameters()).dtype
    images = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    with torch.no_grad():
        expected, got = model.eval()(images), folded(images)
    assert not folded.training
    assert (expected - got).norm() <= rtol * expected.norm()


NETWORKS = {
    # name: (network, image size, norms that become a ScaleShift: those of a sum or of a dense concatenation)
    "preact_resnet164_cifar": (lambda: create_model("preact_resnet164_cifar"), 32, 54),
    "resnet20_cifar": (lambda: create_model("resnet20_cifar", option="B"), 16, 0),
    "wide": (lambda: create_model("wide_resnet16_4_cifar"), 8, 6),
    "convolution and norm on the shortcut": (lambda: create_model("resnet20_cifar", shortcut="conv1x1"), 16, 0),
    "torchvision densenet121": (torchvision.models.densenet121, 64, 62),
    "torchvision resnet50": (torchvision.models.resnet50, 64, 0),
    "timm resnetv2_50": (lambda: timm.create_model("resnetv2_50"), 64, 17),
    "timm mobilenetv3": (lambda: timm.create_model("mobilenetv3_small_100"), 64, 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_network_computes_the_same(name):
    make, size, rest = NETWORKS[name]
    model = trained(make())
    folded = fold_batch_norm(model)
    assert_same(model, folded, size)
    assert (count(folded, BATCH_NORM), count(folded, ScaleShift)) == (0, rest)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("unit", ["basic", "bottleneck"])
def test_every_order_folds(order, unit):
    model = trained(create_model("resnet20_cifar", order=order, unit=unit))
    folded = fold_batch_norm(model)
    assert_same(model, folded, 16)
    assert count(folded, BATCH_NORM) == 0


def test_nothing_of_the_argument_changes():
    model = trained(create_model("preact_resnet20_cifar")).train()
    before = copy.deepcopy(model.state_dict())
    fold_batch_norm(model)
    assert model.training and list(before) == list(model.state_dict())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_convolution_with_a_bias_and_a_norm_without_gamma():
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False), nn.ReLU()))
    assert_same(model, fold_batch_norm(model), 8)


class Shared(nn.Module):
    """One convolution for two norms: it cannot take both over."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)

    def forward(self, x):
        return self.second(self.conv(self.first(self.conv(x))))


class Branching(nn.Module):
    """The convolution's output is seen without its norm too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x):
        y = self.conv(x)
        return y + F.relu(self.norm(y))


@pytest.mark.parametrize(("make", "rest"), [(Shared, 2), (Branching, 1)])
def test_what_a_convolution_cannot_take_over_stays_a_scale_and_shift(make, rest):
    model = trained(make())
    folded = fold_batch_norm(model)
    assert_same(model, folded, 4)
    assert count(folded, ScaleShift) == rest


def test_norms_of_groups_fold_as_their_plain_selves():
    model = create_model("resnet20_cifar")
    convert_batch_norm(model, group_size=2)
    trained(model)
    folded = fold_batch_norm(model)
    assert_same(model, folded, 8)
    assert count(folded, BATCH_NORM) == 0


def test_a_norm_without_running_statistics_stays():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False)).double()
    folded = fold_batch_norm(model)
    assert count(folded, BATCH_NORM) == 1
    assert_same(model, folded, 4)


def test_a_fold_that_overflows_half_precision_is_left_undone():
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.BatchNorm2d(2)).half()
    nn.init.constant_(model[0].weight, 30_000.0)
    model[1].running_var.fill_(1e-4)  # a scale of about 95
    folded = fold_batch_norm(model)
    assert count(folded, ScaleShift) == 1
    images = torch.tensor([[[[1e-3]]]], dtype=torch.half)
    torch.testing.assert_close(folded(images), model.eval()(images), rtol=2e-3, atol=0)


def test_float32_error_is_small():
    model = trained(create_model("preact_resnet164_cifar")).float()
    assert_same(model, fold_batch_norm(model), 32, rtol=1e-5)


def test_a_thousand_layers_fold_within_the_recursion_limit():
    model = create_model("preact_resnet1001_cifar")
    folded = fold_batch_norm(model.double())
    assert count(folded, ScaleShift) == 333 and count(folded, BATCH_NORM) == 0
    assert_same(model, folded, 8, rtol=1e-8)


class Branched(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_what_is_no_module_is_refused():
    with pytest.raises(UsageError, match=r"^model None: must be a torch.nn.Module"):
        fold_batch_norm(None)


def test_a_model_that_cannot_be_traced_is_one_line():
    with pytest.raises(UsageError, match=r"^model Branched: cannot be folded, its computation cannot be traced"):
        fold_batch_norm(Branched())
