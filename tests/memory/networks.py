"""Networks of residual units of every kind that a memory plan meets, and one training step of a network, whole."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.models.catalogue import create_model
from verydeep.models.highway import Highway, HighwaySpec
from verydeep.models.nfnet import NFResNet, NFResNetSpec
from verydeep.models.spec import ResNetSpec
from verydeep.models.unet import UNet
from verydeep.nn.norm import convert_batch_norm
from verydeep.nn.unit import ResidualUnit


def ghost() -> nn.Module:
    model = create_model("preact_resnet14_cifar")
    convert_batch_norm(model, group_size=3)
    return model


def alone() -> nn.Module:
    """Residual units that stand in no nn.Sequential, one of them inside another's branch."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 4, 3, padding=1)
            inner = ResidualUnit(nn.Sequential(nn.ReLU(), nn.Conv2d(4, 4, 1)))
            self.outer = ResidualUnit(nn.Sequential(nn.BatchNorm2d(4), inner))
            self.last = ResidualUnit(nn.Sequential(nn.Conv2d(4, 10, 1), nn.Dropout(0.3)), shortcut=None)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.outer(self.stem(x))).mean((2, 3))

    return Alone()


def walked() -> nn.Module:
    """A network whose units are in an nn.Sequential that is never called itself."""

    class Walked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.units = nn.Sequential(
                *(ResidualUnit(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1))) for _ in range(3))
            )
            self.head = nn.Linear(3, 10)

        def forward(self, x: Tensor) -> Tensor:
            for unit in self.units:
                x = unit(x)
            return self.head(x.mean((2, 3)))

    return Walked()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "full_preact": lambda: create_model("preact_resnet14_cifar"),
    "full_preact bottleneck": lambda: create_model("preact_resnet20_cifar", unit="bottleneck"),
    "original": lambda: create_model("resnet14_cifar"),
    "original bottleneck": lambda: create_model("resnet20_cifar", unit="bottleneck", option="B"),
    "bn_after_addition": lambda: create_model("resnet14_cifar", order="bn_after_addition"),
    "relu_before_addition": lambda: create_model("resnet14_cifar", order="relu_before_addition"),
    "relu_only_preact": lambda: create_model("preact_resnet14_cifar", order="relu_only_preact"),
    "one_layer": lambda: create_model("preact_resnet8_cifar", unit="one_layer"),
    "plain": lambda: create_model("plain14_cifar"),
    "dropout": lambda: create_model("preact_resnet14_cifar", shortcut="dropout"),
    "exclusive_gate": lambda: create_model("resnet14_cifar", shortcut="exclusive_gate"),
    "stochastic_depth": lambda: create_model("resnet14_cifar", stochastic_depth=0.5),
    "ghost": ghost,
    "group": lambda: create_model("preact_resnet14_cifar", norm="group"),
    "fixup": lambda: create_model("resnet14_cifar", norm="none", scale="fixup"),
    "imagenet": lambda: create_model("preact_resnet18", num_classes=10, widen=0.125),
    "nf_resnet": lambda: NFResNet(NFResNetSpec((2, 2), unit="bottleneck", width=4)),
    "unet": lambda: UNet(ResNetSpec((2, 2, 2), option="B")),
    "highway": lambda: Highway(HighwaySpec(num_units=6, width=8, conv=True, image_size=16, in_channels=3)),
    "alone": alone,
}
SHAPE = (7, 3, 16, 16)


def drawn(name: str) -> nn.Module:
    """A network in training mode, none of whose parameters is zero: every one has a gradient to compare."""
    torch.manual_seed(0)
    model = NETWORKS[name]().train()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def images() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))


def step(model: nn.Module, x: Tensor | None = None) -> dict[str, Any]:
    """All that one training step computes and leaves, as tensors by name."""
    torch.manual_seed(1)
    output = model(images() if x is None else x)
    labels = torch.randint(0, 10, (len(output), *output.shape[2:]))
    loss = F.cross_entropy(output, labels)
    loss.backward()
    gradients = {f"gradient of {name}": parameter.grad for name, parameter in model.named_parameters()}
    buffers = {f"buffer {name}": buffer for name, buffer in model.named_buffers()}
    return {"output": output, "loss": loss, "random": torch.get_rng_state()} | gradients | buffers


def assert_same(ours: dict[str, Any], plain: dict[str, Any]) -> None:
    """Bit for bit."""
    assert ours.keys() == plain.keys()
    for name, value in plain.items():
        assert value is not None, f"{name}: there is none to compare"
        assert torch.equal(ours[name], value), name
