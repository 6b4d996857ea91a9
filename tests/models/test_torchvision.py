"""Original networks equal torchvision's with the same weights: logits, gradients and running statistics."""

import re

import pytest
import torch
import torchvision
from torch import nn

from tests.nn.comparison import random_images
from verydeep import create_model

RENAMED = [
    (r"^stem\.conv\.", "conv1."),
    (r"^stem\.act\.norm\.", "bn1."),
    (r"^stages\.(\d)\.", lambda match: f"layer{int(match[1]) + 1}."),
    (r"branch\.conv(\d)\.", r"conv\1."),
    (r"branch\.act(\d)\.norm\.", r"bn\1."),
    (r"branch\.norm(\d)\.", r"bn\1."),
    (r"shortcut\.conv\.", "downsample.0."),
    (r"shortcut\.norm\.", "downsample.1."),
    (r"^head\.linear\.", "fc."),
]


def torchvision_name(name: str) -> str:
    for pattern, replacement in RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


@torch.no_grad()
def randomise_norms(model: nn.Module) -> None:
    """Gains, shifts and running statistics off 1 and 0; convolutions keep their initialisation, which keeps scale."""
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        norm.weight.uniform_(0.5, 1.5)
        norm.bias.normal_(std=0.2)
        norm.running_mean.normal_(std=0.2)
        norm.running_var.uniform_(0.5, 1.5)
    model.head.linear.bias.normal_()


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor, name: str) -> None:
    """To 1e-10 of the largest entry: sums of signed terms in another order differ by that, however small the sum."""
    torch.testing.assert_close(
        ours, theirs, atol=1e-10 * theirs.abs().max().item(), rtol=0, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {}),
        ("resnet34", {}),
        ("resnet50", {"stride_on": "3x3"}),
    ],
    ids=["resnet18", "resnet34", "resnet50"],
)
def test_network_equals_torchvisions(name, options, training):
    torch.manual_seed(0)
    ours = create_model(name, num_classes=10, **options).double().train(training)
    randomise_norms(ours)
    theirs = torchvision.models.get_model(name, num_classes=10).double().train(training)
    theirs.load_state_dict({torchvision_name(key): value for key, value in ours.state_dict().items()})
    probe = random_images(2, 10, seed=1)
    outputs, inputs = [], []
    for model in (ours, theirs):
        images = random_images(2, 3, 64, 64).requires_grad_()
        output = model(images)
        (output * probe).sum().backward()
        outputs.append(output)
        inputs.append(images.grad)
    assert_equal(*outputs, "logits")
    assert_equal(*inputs, "input gradient")
    their_parameters, their_buffers = dict(theirs.named_parameters()), dict(theirs.named_buffers())
    for key, parameter in ours.named_parameters():
        assert_equal(parameter.grad, their_parameters.pop(torchvision_name(key)).grad, key)
    assert not their_parameters
    for key, buffer in ours.named_buffers():
        assert_equal(buffer, their_buffers[torchvision_name(key)], key)


def test_stride_on_the_1x1_is_another_network_with_the_same_shapes():
    torch.manual_seed(0)
    ours = create_model("resnet50", num_classes=10).double().eval()
    randomise_norms(ours)
    other = create_model("resnet50", num_classes=10, stride_on="3x3").double().eval()
    other.load_state_dict(ours.state_dict())
    images = random_images(1, 3, 64, 64)
    with torch.no_grad():
        assert not torch.allclose(ours(images), other(images), rtol=0.01)
