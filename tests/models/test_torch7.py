"""Torch7 files, written here in their format, give the network that they hold; damaged ones are one line."""

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.models.test_foreign import randomise
from tests.nn.comparison import random_images
from verydeep import create_model
from verydeep.errors import UsageError
from verydeep.models.torch7 import import_torch7

NUMBER, STRING, TABLE, TORCH = 1, 2, 3, 4


class Layer:
    """A layer of Torch7: its class and its fields."""

    def __init__(self, name: str, **fields: Any) -> None:
        self.name, self.fields = name, fields


class Writer:
    """Torch7's binary format: every object an int for its type, then its value; tensors with their storage."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.count = 0

    def integers(self, *values: int) -> None:
        self.parts.append(struct.pack(f"{len(values)}i", *values))

    def longs(self, *values: int) -> None:
        self.parts.append(struct.pack(f"{len(values)}q", *values))

    def string(self, text: str) -> None:
        self.integers(len(text))
        self.parts.append(text.encode())

    def begin(self, kind: int) -> None:
        self.count += 1
        self.integers(kind, self.count)

    def torch_class(self, name: str) -> None:
        self.begin(TORCH)
        self.string("V 1")
        self.string(name)

    def value(self, value: Any) -> None:
        if value is None:
            self.integers(0)
        elif isinstance(value, (int, float)):
            self.integers(NUMBER)
            self.parts.append(struct.pack("d", value))
        elif isinstance(value, torch.Tensor):
            self.tensor(value.contiguous().numpy())
        elif isinstance(value, Layer):
            self.torch_class(value.name)
            self.table(value.fields)
        else:
            self.table(dict(enumerate(value, start=1)))

    def table(self, items: dict) -> None:
        self.begin(TABLE)
        self.integers(len(items))
        for key, item in items.items():
            if isinstance(key, str):
                self.integers(STRING)
                self.string(key)
            else:
                self.value(key)
            self.value(item)

    def tensor(self, array: np.ndarray) -> None:
        self.torch_class("torch.DoubleTensor")
        self.integers(array.ndim)
        self.longs(*array.shape)
        self.longs(*(step // array.itemsize for step in array.strides))
        self.longs(1)
        self.torch_class("torch.DoubleStorage")
        self.longs(array.size)
        self.parts.append(array.tobytes())


def write(path: Path, layer: Layer) -> Path:
    writer = Writer()
    writer.value(layer)
    path.write_bytes(b"".join(writer.parts))
    return path


def sequential(*layers: Layer) -> Layer:
    return Layer("nn.Sequential", modules=layers)


def conv(module: nn.Conv2d) -> Layer:
    out, _, height, width = module.weight.shape
    fields = dict(nOutputPlane=out, kH=height, kW=width, dH=module.stride[0], dW=module.stride[1])
    return Layer("cudnn.SpatialConvolution", weight=module.weight.detach(), bias=torch.zeros(out).double(), **fields)


def norm_relu(module: nn.Module) -> list[Layer]:
    norm = module.norm
    values = dict(weight=norm.weight.detach(), bias=norm.bias.detach())
    values |= dict(running_mean=norm.running_mean, running_var=norm.running_var)
    return [Layer("nn.SpatialBatchNormalization", **values), Layer("cudnn.ReLU")]


def unit_layers(unit: nn.Module, preact: nn.Module | None) -> Layer:
    branch: list[Layer] = []
    for module in unit.branch:
        branch += [conv(module)] if isinstance(module, nn.Conv2d) else norm_relu(module)
    first = [] if preact is None else norm_relu(preact)
    if unit.share_preact:
        pair = [sequential(*branch), sequential(conv(unit.shortcut.conv))]
    else:
        first, pair = [], [sequential(*first, *branch), Layer("nn.Identity")]
    return sequential(*first, Layer("nn.ConcatTable", modules=pair), Layer("nn.CAddTable"))


def torch7_layers(model: nn.Module) -> Layer:
    """As the authors' code stacks them: for CIFAR the stem is a convolution alone, and its norm the first unit's."""
    imagenet = model.spec.stem == "imagenet"
    stem = [conv(model.stem.conv)]
    if imagenet:
        stem += [*norm_relu(model.stem.act), Layer("nn.SpatialMaxPooling")]
    stages = []
    for number, stage in enumerate(model.stages):
        units = list(stage)
        own = [unit.preact for unit in units]
        if number == 0 and not imagenet:
            own[0] = model.stem.act
        stages.append(sequential(*(unit_layers(unit, preact) for unit, preact in zip(units, own, strict=True))))
    linear = Layer("nn.Linear", weight=model.head.linear.weight.detach(), bias=model.head.linear.bias.detach())
    end = [*norm_relu(model.head.act), Layer("cudnn.SpatialAveragePooling"), Layer("nn.View"), linear]
    return sequential(*stem, *stages, *end)


NETWORKS = [
    ("preact_resnet29_cifar", {}),
    ("preact_resnet50", dict(width=8)),
    ("preact_resnet50", dict(width=8, stride_on="3x3")),
    ("preact_resnet200", dict(width=4, stride_on="3x3")),
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), NETWORKS)
def test_a_file_gives_the_network_that_it_holds(tmp_path: Path, name, options):
    pytest.importorskip("torchfile")
    torch.manual_seed(0)
    model = randomise(create_model(name, option="B", num_classes=7, **options))
    ours = import_torch7(write(tmp_path / "net.t7", torch7_layers(model)))
    assert ours.spec == model.spec and not ours.training
    images = random_images(2, 3, 64, 64)
    expected = model(images)
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-10 * expected.abs().max().item())


def small() -> Layer:
    torch.manual_seed(0)
    return torch7_layers(create_model("preact_resnet11_cifar").double())


def without_head() -> Layer:
    layers = small()
    return sequential(*layers.fields["modules"][:-1])


def with_another_layer() -> Layer:
    return sequential(*small().fields["modules"], Layer("nn.SpatialDropout"))


def with_a_relu_after_the_sum() -> Layer:
    """As units of the original order have it."""
    layers = small()
    unit = layers.fields["modules"][1].fields["modules"][0]
    unit.fields["modules"] = (*unit.fields["modules"], Layer("nn.ReLU"))
    return layers


def with_a_norm_of_the_branch_alone() -> Layer:
    """Another network with the same tensors: the projection takes raw x."""
    layers = small()
    unit = layers.fields["modules"][2].fields["modules"][0]
    *first, pair, add = unit.fields["modules"]
    branch, shortcut = pair.fields["modules"]
    pair.fields["modules"] = [sequential(*first, branch), shortcut]
    unit.fields["modules"] = (pair, add)
    return layers


def with_a_pooled_shortcut() -> Layer:
    layers = small()
    unit = layers.fields["modules"][1].fields["modules"][0]
    pair = unit.fields["modules"][2].fields["modules"]
    pair[1] = sequential(Layer("nn.SpatialAveragePooling"), pair[1])
    return layers


def with_another_eps() -> Layer:
    layers = small()
    layers.fields["modules"][-5].fields["eps"] = 1e-3
    return layers


def without_weights() -> Layer:
    layers = small()
    layers.fields["modules"][-1].fields["weight"] = None
    return layers


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (without_head, "a pre-activation ResNet ends in norm and linear layer"),
        (with_another_layer, "a layer SpatialDropout, which verydeep"),
        (with_a_relu_after_the_sum, "a branch and a shortcut, then their sum alone"),
        (with_a_norm_of_the_branch_alone, "unit 1: its first norm is not where a pre-activation ResNet has it"),
        (with_a_pooled_shortcut, "a shortcut with SpatialAveragePooling; must be a projection alone"),
        (with_another_eps, r"eps 0\.001 of a norm; must be 1e-05"),
        (lambda: sequential(Layer("nn.Sequential", modules=3)), r"is no network as Torch7 writes them .TypeError."),
        (without_weights, "a layer without its weights"),
        (lambda: sequential(Layer("nn.ReLU")), "no residual unit"),
    ],
)
def test_another_network_is_refused(tmp_path: Path, layers, message):
    pytest.importorskip("torchfile")
    with pytest.raises(UsageError, match=message):
        import_torch7(write(tmp_path / "net.t7", layers()))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_half_a_file_is_one_line(tmp_path: Path, share):
    pytest.importorskip("torchfile")
    path = write(tmp_path / "net.t7", small())
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UsageError, match="torch7") as caught:
        import_torch7(path)
    assert "\n" not in str(caught.value)


def test_a_tensor_beyond_its_storage_is_never_touched(tmp_path: Path, monkeypatch):
    pytest.importorskip("torchfile")

    def lying(self: Writer, array: np.ndarray) -> None:
        honest(self, array[:1] if array.ndim == 1 and array.size == 10 else array)
        if array.ndim == 1 and array.size == 10:  # the head's bias: says ten, has one
            place = next(i for i in range(len(self.parts) - 1, 0, -1) if self.parts[i] == struct.pack("q", 1))
            sizes = [i for i in range(place) if self.parts[i] == struct.pack("q", 1)]
            self.parts[sizes[-3]] = struct.pack("q", 10)

    honest = Writer.tensor
    monkeypatch.setattr(Writer, "tensor", lying)
    with pytest.raises(UsageError, match="reaches beyond its storage"):
        import_torch7(write(tmp_path / "net.t7", small()))


def test_without_the_reader_it_is_said(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchfile", None)
    with pytest.raises(UsageError, match="is read by torchfile, which is not installed"):
        import_torch7(tmp_path / "net.t7")
