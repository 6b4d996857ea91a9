"""Faults of norms, and of inputs that were never normalised."""

import copy
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fault_models.activation import SmallCNN
from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, tokens, vectors
from fault_models.shortcut import PreNormAttention, PreNormFFN


def double_norm_sequential() -> Arguments:
    layers: list[nn.Module] = []
    for width, out in ((3, 16), (16, 16), (16, 32)):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.BatchNorm2d(out), nn.ReLU()]
    return Arguments(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), *images())


class TwiceNormedBlock(nn.Module):
    """A pre-norm block around layers that have their own pre-norm."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = PreNormAttention(dim)
        self.mlp = PreNormFFN(dim, act_last=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def double_norm_transformer() -> Arguments:
    blocks = [TwiceNormedBlock(32) for _ in range(6)]
    return Arguments(nn.Sequential(nn.Embedding(40, 32), *blocks, nn.LayerNorm(32), TokenHead(32)), *tokens())


class TokenHead(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.mean(1))


class InstanceThenBatch(nn.Module):
    """The first norm functional, the second a module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(F.instance_norm(self.conv1(x)))
        return x + self.conv2(F.relu(out))


def instance_then_batch_norm() -> Arguments:
    units = [InstanceThenBatch(16) for _ in range(4)]
    stem = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, NUM_CLASSES)]
    return Arguments(nn.Sequential(*stem, nn.ReLU(), *units, *head), *images())


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, *, steps: int = 40, lr: float = 0.1) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return model


def averaged_weights_without_statistics() -> Arguments:
    """Weights of the end of training, running statistics of its beginning."""
    batch = images(64)
    model = SmallCNN()
    start = copy.deepcopy(trained(model, *batch, steps=1)).state_dict()
    trained(model, *batch)
    statistics = {name: value for name, value in start.items() if "running" in name or "tracked" in name}
    model.load_state_dict(statistics, strict=False)
    return Arguments(model.eval(), *batch)


def slow_statistics() -> Arguments:
    """Forty steps at momentum 0.001: the running statistics are still those of the start."""
    batch = vectors()
    layers: list[nn.Module] = []
    for width in (32, 64, 64):
        layers += [nn.Linear(width, 64), nn.BatchNorm1d(64, momentum=0.001), nn.ReLU()]
    model = trained(nn.Sequential(nn.Linear(32, 32), *layers, nn.Linear(64, NUM_CLASSES)), *batch)
    return Arguments(model.eval(), *batch)


def evaluated_on_other_data() -> Arguments:
    """Trained on normalised images; those of the evaluation are darker and of less contrast."""
    pictures, labels = images(64)
    return Arguments(trained(SmallCNN(), pictures, labels).eval(), 0.1 * pictures - 2.0, labels)


class Shrinking(nn.Module):
    """Five strides of 2: 1x1 maps for images of 32 pixels."""

    def __init__(self, norm: type[nn.Module] | partial) -> None:
        super().__init__()
        widths = (3, 8, 16, 32, 32, 32)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(norm(b) for b in widths[1:])
        self.head = nn.Linear(32, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(norm(conv(x)))
        return self.head(x.flatten(1))


def batch_norm_of_two_values() -> Arguments:
    return Arguments(Shrinking(nn.BatchNorm2d), *images(2, size=32))


def batch_of_one() -> Arguments:
    """torch refuses to train a norm that sees a single value."""
    return Arguments(Shrinking(nn.BatchNorm2d), *images(1, size=32))


class GroupPerChannel(nn.GroupNorm):
    """As many groups as channels."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)


def group_norm_of_one_value() -> Arguments:
    return Arguments(Shrinking(GroupPerChannel), *images(size=32))


def batch_of_two_vectors() -> Arguments:
    layers: list[nn.Module] = []
    for width in (32, 64, 64):
        layers += [nn.Linear(width, 64), nn.BatchNorm1d(64), nn.ReLU()]
    return Arguments(nn.Sequential(*layers, nn.Linear(64, NUM_CLASSES)), *vectors(2))


def momentum_of(momentum: float) -> Arguments:
    model = SmallCNN()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = momentum
    return Arguments(model, *images())


def momentum_of_another_framework() -> Arguments:
    layers: list[nn.Module] = []
    for width in (32, 64, 64):
        layers += [nn.Linear(width, 64), nn.BatchNorm1d(64, eps=1e-3, momentum=0.99), nn.ReLU()]
    return Arguments(nn.Sequential(*layers, nn.Linear(64, NUM_CLASSES)), *vectors())


def bytes_of(pictures: Tensor) -> Tensor:
    """The same pictures as 8-bit values, 0 to 255."""
    return (128 + 50 * pictures).round().clamp(0, 255)


def cnn_on_bytes() -> Arguments:
    pictures, labels = images()
    layers: list[nn.Module] = []
    for width, out in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return Arguments(nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, NUM_CLASSES)), bytes_of(pictures), labels)


def mlp_on_bytes() -> Arguments:
    """No norm: what enters 100 times too large leaves 100 times too large."""
    pictures, labels = images(channels=1)
    hidden = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()]
    return Arguments(nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, NUM_CLASSES)), bytes_of(pictures), labels)


class SmallViT(nn.Module):
    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 2, 2)
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 16, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2) + self.pos_embed
        return self.head(self.blocks(x).mean(1))


def vit_on_bytes() -> Arguments:
    pictures, labels = images()
    return Arguments(SmallViT(), bytes_of(pictures), labels)


CASES: list[Case] = [
    fault(double_norm_sequential, "double-norm"),
    fault(double_norm_transformer, "double-norm"),
    fault(instance_then_batch_norm, "double-norm"),
    fault(averaged_weights_without_statistics, "norm-stats-stale"),
    fault(slow_statistics, "norm-stats-stale", "norm-momentum"),
    fault(evaluated_on_other_data, "norm-stats-stale", "unnormalised-input"),
    fault(batch_norm_of_two_values, "norm-degenerate-batch"),
    fault(batch_of_one, "norm-degenerate-batch"),
    fault(group_norm_of_one_value, "norm-degenerate-batch", "constant-output"),
    fault(batch_of_two_vectors, "norm-degenerate-batch"),
    fault(partial(momentum_of, 0.9), "norm-momentum", name="momentum_0.9"),
    fault(partial(momentum_of, 0.0), "norm-momentum", name="momentum_0"),
    fault(partial(momentum_of, 1.0), "norm-momentum", name="momentum_1"),
    fault(momentum_of_another_framework, "norm-momentum"),
    fault(cnn_on_bytes, "unnormalised-input"),
    fault(mlp_on_bytes, "unnormalised-input"),
    fault(vit_on_bytes, "unnormalised-input"),
]
