"""DenseNet: each layer takes the concatenated outputs of all layers before it. Named in `related`."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.errors import UsageError, resolve_name
from verydeep.models.check import probability, stages, whole_numbers
from verydeep.nn.init import he_normal
from verydeep.nn.norm_act import NormAct


@dataclass(frozen=True)
class DenseNetSpec:
    """A DenseNet declared.

    Args:    block_layers: dense layers of each block
             growth: k, channels that a layer adds
             bottleneck: a 1x1 convolution to 4k channels before each 3x3 (the B of DenseNet-BC)
             compression: factor on the channels between blocks (the C); 1 keeps them
             stem: cifar (3x3 convolution) or imagenet (7x7 with stride 2, then 3x3 max pooling with stride 2)
             stem_channels: outputs of the stem
             dropout: rate behind each convolution but the first
             num_classes, in_channels: outputs, and channels of an image
    Raises:  UsageError: if a name is unknown or a number breaks its rule.
    """

    block_layers: tuple[int, ...]
    growth: int
    bottleneck: bool = True
    compression: float = 0.5
    stem: str = "cifar"
    stem_channels: int = 16
    dropout: float = 0.0
    num_classes: int = 10
    in_channels: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_layers", tuple(self.block_layers))
        object.__setattr__(self, "stem", resolve_name("stem", self.stem, ("cifar", "imagenet")))
        stages("block_layers", self.block_layers, of="layer", places="blocks")
        names = ("growth", "stem_channels", "num_classes", "in_channels")
        whole_numbers(**{name: getattr(self, name) for name in names})
        probability(dropout=self.dropout)
        if not 0 < self.compression <= 1:
            raise UsageError(f"compression {self.compression}: must be above 0 and at most 1")

    @property
    def depth(self) -> int:
        """Weighted layers: stem, dense layers, one convolution between blocks, head."""
        return 1 + (2 if self.bottleneck else 1) * sum(self.block_layers) + len(self.block_layers)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `DenseNetSpec(**...)` takes back."""
        return dataclasses.asdict(self) | {"block_layers": list(self.block_layers)}


def cifar_densenet(depth: int, growth: int, *, bottleneck: bool) -> DenseNetSpec:
    """The networks of three equal blocks for small images: plain, or DenseNet-BC with bottleneck and compression.

    depth = 3n + 4, or 6n + 4 with bottleneck; n layers a block

    Raises:  UsageError: if no n >= 1 gives the depth, with the nearest that exist.
    Source:  Huang et al. 2017, section 3, implementation details

    >>> cifar_densenet(100, 12, bottleneck=True).block_layers, cifar_densenet(40, 12, bottleneck=False).block_layers
    ((16, 16, 16), (12, 12, 12))
    """
    period = 6 if bottleneck else 3
    layers, rest = divmod(depth - 4, period)
    if rest or layers < 1:
        low = max(1, layers) * period + 4
        kind = "DenseNet-BC" if bottleneck else "DenseNet"
        raise UsageError(f"depth {depth}: {kind} for CIFAR has depth {period}n+4 (nearest {low}, {low + period})")
    return DenseNetSpec(
        (layers,) * 3,
        growth,
        bottleneck=bottleneck,
        compression=0.5 if bottleneck else 1.0,
        stem_channels=2 * growth if bottleneck else 16,
    )


IMAGENET_BLOCKS: dict[int, tuple[tuple[int, ...], int]] = {
    121: ((6, 12, 24, 16), 32),
    161: ((6, 12, 36, 24), 48),
    169: ((6, 12, 32, 32), 32),
    201: ((6, 12, 48, 32), 32),
}


def imagenet_densenet(depth: int) -> DenseNetSpec:
    """DenseNet-BC of Table 1, with k = 32, or 48 for depth 161.

    Raises:  UsageError: if the table has no such depth.
    Source:  Huang et al. 2017, Table 1
    """
    if depth not in IMAGENET_BLOCKS:
        raise UsageError(f"depth {depth}: ImageNet DenseNets have depth {', '.join(map(str, IMAGENET_BLOCKS))}")
    layers, growth = IMAGENET_BLOCKS[depth]
    return DenseNetSpec(layers, growth, stem="imagenet", stem_channels=2 * growth, num_classes=1000)


class DenseNet(nn.Module):
    """Stem, dense blocks with a transition between them, BN-ReLU, mean over positions, linear layer.

    Shape:   (N, in_channels, H, W) -> (N, num_classes)
    Source:  Huang et al. 2017
    """

    def __init__(self, spec: DenseNetSpec) -> None:
        super().__init__()
        self.spec = spec
        self.stem = _make_stem(spec)
        self.blocks = nn.ModuleList()
        channels = spec.stem_channels
        for index, num_layers in enumerate(spec.block_layers):
            block = nn.Sequential()
            if index > 0:
                block.append(Transition(channels, int(channels * spec.compression), dropout=spec.dropout))
                channels = int(channels * spec.compression)
            for _ in range(num_layers):
                block.append(DenseLayer(channels, spec))
                channels += spec.growth
            self.blocks.append(block)
        self.act = NormAct(nn.BatchNorm2d(channels))
        self.linear = nn.Linear(channels, spec.num_classes)
        self.apply(he_normal)
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images.contiguous(memory_format=torch.channels_last))
        for block in self.blocks:
            x = block(x)
        return self.linear(self.act(x).mean((2, 3)))


class DenseLayer(nn.Module):
    """x' = [x, H(x)], H = BN-ReLU-W3x3, or BN-ReLU-W1x1-BN-ReLU-W3x3 with bottleneck.

    Shape:   (N, C, H, W) -> (N, C + growth, H, W)
    Source:  Huang et al. 2017, Eq. 2
    """

    def __init__(self, channels: int, spec: DenseNetSpec) -> None:
        super().__init__()
        inner = 4 * spec.growth
        widths = [(channels, inner, 1), (inner, spec.growth, 3)] if spec.bottleneck else [(channels, spec.growth, 3)]
        self.branch = nn.Sequential()
        for i, (in_channels, out_channels, kernel) in enumerate(widths, start=1):
            self.branch.add_module(f"act{i}", NormAct(nn.BatchNorm2d(in_channels)))
            conv = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=False)
            self.branch.add_module(f"conv{i}", conv)
            if spec.dropout > 0:
                self.branch.add_module(f"dropout{i}", nn.Dropout(spec.dropout))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.branch(x)], 1)


class Transition(nn.Sequential):
    """BN-ReLU-W1x1, then 2x2 mean pooling.

    Shape:   (N, C_in, H, W) -> (N, C_out, H // 2, W // 2)
    """

    def __init__(self, in_channels: int, out_channels: int, *, dropout: float) -> None:
        super().__init__()
        self.add_module("act", NormAct(nn.BatchNorm2d(in_channels)))
        self.add_module("conv", nn.Conv2d(in_channels, out_channels, 1, bias=False))
        if dropout > 0:
            self.add_module("dropout", nn.Dropout(dropout))
        self.add_module("pool", nn.AvgPool2d(2))


def _make_stem(spec: DenseNetSpec) -> nn.Sequential:
    stem = nn.Sequential()
    if spec.stem == "cifar":
        stem.add_module("conv", nn.Conv2d(spec.in_channels, spec.stem_channels, 3, padding=1, bias=False))
    else:
        stem.add_module("conv", nn.Conv2d(spec.in_channels, spec.stem_channels, 7, stride=2, padding=3, bias=False))
        stem.add_module("act", NormAct(nn.BatchNorm2d(spec.stem_channels)))
        stem.add_module("pool", nn.MaxPool2d(3, stride=2, padding=1))
    return stem
