"""DenseNets: published sizes, and torchvision's with the same weights: logits, gradients, running statistics."""

import re
from itertools import pairwise

import pytest
import torch
import torchvision
from torch import Tensor, nn

from tests.nn.comparison import random_images, randomise
from verydeep import UsageError
from verydeep.models.densenet import DenseNet, DenseNetSpec, cifar_densenet, imagenet_densenet


def num_parameters(spec: DenseNetSpec) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in DenseNet(spec).parameters())


@pytest.mark.parametrize(
    ("depth", "growth", "bottleneck", "millions"),
    [
        (40, 12, False, 1.0),
        (100, 12, False, 7.0),
        (100, 24, False, 27.2),
        (100, 12, True, 0.8),
        (250, 24, True, 15.3),
        (190, 40, True, 25.6),
    ],
)
def test_published_parameters_on_cifar(depth, growth, bottleneck, millions):
    """Huang et al. 2017, Table 2."""
    spec = cifar_densenet(depth, growth, bottleneck=bottleneck)
    assert round(num_parameters(spec) / 1e6, 1) == millions
    assert spec.depth == depth


def test_parameters_of_densenet_bc_100_12():
    assert num_parameters(cifar_densenet(100, 12, bottleneck=True)) == 769162


@pytest.mark.parametrize(("depth", "count"), [(121, 7978856), (161, 28681000), (169, 14149480), (201, 20013928)])
def test_parameters_of_torchvisions_networks(depth, count):
    spec = imagenet_densenet(depth)
    assert num_parameters(spec) == count
    assert spec.depth == depth


def torchvision_name(name: str) -> str:
    match = re.fullmatch(r"blocks\.(\d+)\.(\d+)\.(.*)", name)
    if match:
        block, index, rest = int(match[1]), int(match[2]), match[3]
        if block > 0 and index == 0:
            return f"features.transition{block}.{rest.replace('act.norm', 'norm')}"
        index += block == 0  # elsewhere the transition is the block's first module
        rest = re.sub(r"branch\.(?:act(\d)\.norm|conv(\d))", lambda m: f"norm{m[1]}" if m[1] else f"conv{m[2]}", rest)
        return f"features.denseblock{block + 1}.denselayer{index}.{rest}"
    for ours, theirs in [
        ("stem.conv", "features.conv0"),
        ("stem.act.norm", "features.norm0"),
        ("act.norm", "features.norm5"),
        ("linear", "classifier"),
    ]:
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise AssertionError(name)


def assert_equal(ours: Tensor, theirs: Tensor, name: str) -> None:
    """To 1e-10 of the largest entry: sums of signed terms in another order differ by that, however small the sum."""
    torch.testing.assert_close(
        ours, theirs, atol=1e-10 * theirs.abs().max().item(), rtol=0, msg=lambda text: f"{name}: {text}"
    )


def assert_equals_torchvisions(ours: DenseNet, theirs: nn.Module, images: Tensor) -> None:
    randomise(ours, std=0.1)
    theirs.load_state_dict({torchvision_name(key): value for key, value in ours.state_dict().items()})
    outputs = [model(images) for model in (ours, theirs)]
    assert_equal(*outputs, "logits")
    for output in outputs:
        output.square().sum().backward()
    their_parameters, their_buffers = dict(theirs.named_parameters()), dict(theirs.named_buffers())
    for key, parameter in ours.named_parameters():
        assert_equal(parameter.grad, their_parameters.pop(torchvision_name(key)).grad, key)
    assert not their_parameters
    for key, buffer in ours.named_buffers():
        assert_equal(buffer, their_buffers[torchvision_name(key)], key)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_network_equals_torchvisions(training):
    """A small one, all of it."""
    torch.manual_seed(0)
    spec = DenseNetSpec((2, 3, 2), 4, stem="imagenet", stem_channels=8)
    theirs = torchvision.models.DenseNet(4, (2, 3, 2), 8, num_classes=10)
    assert_equals_torchvisions(
        DenseNet(spec).double().train(training), theirs.double().train(training), random_images(2, 3, 40, 40)
    )


def test_densenet121_equals_torchvisions():
    torch.manual_seed(0)
    ours = DenseNet(imagenet_densenet(121)).double().eval()
    randomise(ours, std=0.02)
    theirs = torchvision.models.densenet121().double().eval()
    theirs.load_state_dict({torchvision_name(key): value for key, value in ours.state_dict().items()})
    images = random_images(1, 3, 64, 64)
    with torch.no_grad():
        assert_equal(ours(images), theirs(images), "logits")


def test_plain_layers_concatenate_what_they_add():
    model = DenseNet(cifar_densenet(10, 3, bottleneck=False)).double()
    layer = model.blocks[0][0]
    x = random_images(2, 16, 4, 4)
    y = layer(x)
    assert y.shape == (2, 19, 4, 4)
    assert torch.equal(y[:, :16], x)
    assert model(random_images(2, 3, 9, 9)).shape == (2, 10)


def test_dropout_stands_behind_every_convolution_but_the_first():
    model = DenseNet(DenseNetSpec((2, 2), 4, dropout=0.2))
    sequences = [list(module) for module in model.modules() if isinstance(module, nn.Sequential)]
    followed = [type(later) for each in sequences for conv, later in pairwise(each) if isinstance(conv, nn.Conv2d)]
    assert followed == [nn.Dropout] * 9  # two in each of 4 layers, and the transition's


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: cifar_densenet(41, 12, bottleneck=False),
            "depth 41: DenseNet for CIFAR has depth 3n.4 .nearest 40, 43",
        ),
        (
            lambda: cifar_densenet(3, 12, bottleneck=True),
            "depth 3: DenseNet-BC for CIFAR has depth 6n.4 .nearest 10, 16",
        ),
        (lambda: imagenet_densenet(122), "depth 122: ImageNet DenseNets have depth 121, 161, 169, 201"),
        (lambda: DenseNetSpec((), 12), "one or more blocks"),
        (lambda: DenseNetSpec((2,), 0), "growth 0: must be at least 1"),
        (lambda: DenseNetSpec((2,), 4, compression=0.0), "compression 0.0: must be above 0 and at most 1"),
        (lambda: DenseNetSpec((2,), 4, dropout=1.0), "dropout 1.0: a probability"),
    ],
)
def test_what_does_not_exist_is_refused(build, message):
    with pytest.raises(UsageError, match=message):
        build()
