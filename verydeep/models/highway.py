"""Highway networks: residual units with a learnt gate between the layer and its input. Named in `related`."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.errors import UsageError
from verydeep.models.check import stages, whole_numbers
from verydeep.nn.shortcut import GateShortcut, set_gate_bias
from verydeep.nn.unit import ResidualUnit


@dataclass(frozen=True)
class HighwaySpec:
    """A highway network, or its plain twin.

    Args:    num_units: highway layers, which follow one plain layer
             width: units or channels of every layer
             conv: 3x3 convolutions, with three 2x2 max poolings spread over them; else linear layers
             plain: x' = H(x), without gate and shortcut
             gate_bias: b_T at the start; negative, so that inputs are carried
             image_size: side of an image, which the linear layers need
             num_classes, in_channels: outputs, and channels of an image
    Raises:  UsageError: if a number breaks its rule, or the image is too small for the poolings.
    """

    num_units: int = 9
    width: int = 50
    conv: bool = False
    plain: bool = False
    gate_bias: float = -2.0
    image_size: int = 28
    num_classes: int = 10
    in_channels: int = 1

    def __post_init__(self) -> None:
        names = ("num_units", "width", "image_size", "num_classes", "in_channels")
        whole_numbers(**{name: getattr(self, name) for name in names})
        stages("num_units", (self.num_units,), of="unit")
        if self.conv and self.image_size < 8:
            raise UsageError(f"image_size {self.image_size}: three poolings leave nothing of it; nearest 8")

    @property
    def depth(self) -> int:
        """Weighted layers: first, highway layers, output."""
        return self.num_units + 2

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `HighwaySpec(**...)` takes back."""
        return dataclasses.asdict(self)


class Highway(nn.Module):
    """Plain layer, highway layers, linear output.

    Shape:   (N, in_channels, image_size, image_size) -> (N, num_classes)
    Source:  Srivastava et al. 2015 (Training very deep networks), sections 3.1 and 3.2
    Differs: where the convolutional network pools is not said; three poolings at equal distances give its 39K and 151K
             parameters at widths 16 and 32. The activation is ReLU; the source tries tanh too in linear layers.
    """

    def __init__(self, spec: HighwaySpec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = nn.Sequential(*([] if spec.conv else [nn.Flatten()]))
        self.stem.append(make_layer(spec.in_channels if spec.conv else _pixels(spec), spec)).append(nn.ReLU())
        self.layers = _make_conv_layers(spec) if spec.conv else nn.Sequential(*_make_units(spec, spec.num_units))
        side = spec.image_size // 8 if spec.conv else 1  # three poolings
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(spec.width * side**2, spec.num_classes))
        self.apply(_initialise)
        for module in self.modules():
            set_gate_bias(module, spec.gate_bias)

    def forward(self, images: Tensor) -> Tensor:
        size = self.spec.image_size
        if images.shape[2:] != (size, size):
            raise UsageError(f"images {tuple(images.shape)}: this network was built for image_size {size}")
        return self.head(self.layers(self.stem(images)))

    def units(self) -> Iterator[ResidualUnit]:
        """The highway layers, from the stem to the head."""
        return (module for module in self.layers if isinstance(module, ResidualUnit))


def highway_unit(spec: HighwaySpec) -> ResidualUnit:
    """y = H(x) T(x) + x (1 - T(x)), H(x) = relu(W_H x + b_H), T(x) = sigmoid(W_T x + b_T).

    A residual unit with the exclusive gate, whose gate is a whole layer like its branch.

    Source:  Srivastava et al. 2015, Eq. 3
    """
    branch = nn.Sequential(make_layer(spec.width, spec), nn.ReLU())
    if spec.plain:
        return ResidualUnit(branch, shortcut=None)
    gate = make_layer(spec.width, spec)
    return ResidualUnit(branch, shortcut=GateShortcut(nn.Identity(), gate, exclusive=True))  # type: ignore[arg-type]


def make_layer(in_features: int, spec: HighwaySpec) -> nn.Linear | nn.Conv2d:
    """A linear layer or 3x3 convolution to the network's width, with bias."""
    if spec.conv:
        return nn.Conv2d(in_features, spec.width, 3, padding=1)
    return nn.Linear(in_features, spec.width)


def _pixels(spec: HighwaySpec) -> int:
    return spec.in_channels * spec.image_size**2


def _make_units(spec: HighwaySpec, count: int) -> list[nn.Module]:
    return [highway_unit(spec) for _ in range(count)]


def _make_conv_layers(spec: HighwaySpec) -> nn.Sequential:
    """Highway layers with a pooling after each third of the convolutions, the stem's counted."""
    layers = nn.Sequential()
    ends = [round((spec.num_units + 1) * third / 3) - 1 for third in (1, 2, 3)]
    for begin, end in zip([0, *ends], ends, strict=False):
        layers.extend(_make_units(spec, end - begin))
        layers.append(nn.MaxPool2d(2))
    return layers


@torch.no_grad()
def _initialise(module: nn.Module) -> None:
    """He's normal weights, fan-in, and zero biases."""
    if isinstance(module, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
