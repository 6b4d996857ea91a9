"""Faults between parameters and loss: cut paths, frozen or forgotten parameters, values that are not finite."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fault_models.activation import SmallCNN
from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, tokens, vectors


class BackboneAndHead(nn.Module):
    """`between` is what happens to the features on their way to the head."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, NUM_CLASSES)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.backbone(x)))


def between(function: Callable[[Tensor], Tensor]) -> Arguments:
    return Arguments(BackboneAndHead(function), *vectors())


class NoGradBackbone(nn.Module):
    """Left over from an evaluation; the backbone is meant to train."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.features(x)
        return self.head(x.mean((2, 3)))


def no_grad_around_backbone() -> Arguments:
    model = NoGradBackbone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Arguments(model, *images(), optimizer=optimizer)


class DetachedState(nn.Module):
    """The memory of a training step cut loose inside one sequence, at every time step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.cell = nn.GRUCell(32, 32)
        self.head = nn.Linear(32, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(len(x), 32)
        for step in self.embed(x).unbind(1):
            state = self.cell(step, state).detach()
        return self.head(state)


def detached_state() -> Arguments:
    return Arguments(DetachedState(), *tokens())


def clipped_loss() -> Arguments:
    """The clamp was to hold outliers; it holds every loss, so nothing has a gradient."""
    return Arguments(SmallCNN(), *images(), loss=lambda logits, labels: F.cross_entropy(logits, labels).clamp(max=1.0))


def frozen_middle_layer() -> Arguments:
    model = SmallCNN()
    model.conv2.requires_grad_(False)
    return Arguments(model, *images())


def frozen_head() -> Arguments:
    model = SmallCNN()
    model.fc.requires_grad_(False)
    return Arguments(model, *images())


class LayersInAList(nn.Module):
    """A Python list where nn.ModuleList was meant: the layers are not parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.hidden = [nn.Linear(64, 64) for _ in range(3)]
        self.head = nn.Linear(64, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.head(x)


def layers_in_a_list() -> Arguments:
    model = LayersInAList()
    return Arguments(model, *vectors(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))


def optimizer_of_the_head() -> Arguments:
    model = SmallCNN()
    return Arguments(model, *images(), optimizer=torch.optim.SGD(model.fc.parameters(), lr=0.1))


def head_replaced_after_optimizer() -> Arguments:
    model = SmallCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.fc = nn.Linear(32, NUM_CLASSES)
    return Arguments(model, *images(), optimizer=optimizer)


class Function(nn.Module):
    """A named module around a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def at_named_module(function: Callable[[Tensor], Tensor]) -> Arguments:
    layers = [nn.Linear(32, 64), nn.ReLU(), Function(function), nn.Linear(64, NUM_CLASSES)]
    return Arguments(nn.Sequential(*layers), *vectors())


def over_feature_deviation(x: Tensor) -> Tensor:
    """0 / 0 where a unit is off for the whole batch."""
    off = x * (torch.arange(x.shape[1]) > 3)
    return off / off.std(0)


def distances(x: Tensor) -> Tensor:
    """Between all pairs of samples. To itself it is 0, where the root has no derivative: only gradients are NaN."""
    return (x[:, None] - x).pow(2).sum(2).sqrt()


class MaskedAttention(nn.Module):
    """Padding masked by minus infinity; one row is padding only."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(x)).chunk(3, dim=-1)
        scores = (q @ k.transpose(1, 2) / 32**0.5).masked_fill((x == 39)[:, None, :], float("-inf"))
        return self.head((scores.softmax(-1) @ v).mean(1))


def masked_row() -> Arguments:
    rows, labels = tokens()
    rows[3] = 39
    return Arguments(MaskedAttention(), rows, labels)


def softmax_by_hand() -> Arguments:
    """exp without taking the maximum away first; inputs of size 100."""
    return at_named_module(lambda x: (100 * x).exp() / (100 * x).exp().sum(1, keepdim=True))


def nan_in_images() -> Arguments:
    pictures, labels = images()
    pictures[5, 0, 2, 2] = float("nan")
    return Arguments(SmallCNN(), pictures, labels)


def nan_in_weights() -> Arguments:
    model = SmallCNN()
    with torch.no_grad():
        model.conv2.weight[3, 1, 0, 0] = float("nan")
    return Arguments(model, *images())


CASES: list[Case] = [
    fault(partial(between, Tensor.detach), "blocked-gradient", name="detach_in_the_middle"),
    fault(partial(between, lambda x: x.data), "blocked-gradient", name="data_in_the_middle"),
    fault(partial(between, lambda x: torch.tensor(x.tolist())), "blocked-gradient", name="python_lists_between"),
    fault(partial(between, torch.round), "blocked-gradient", name="round_in_the_middle"),
    fault(partial(between, lambda x: (x > 0.1).float()), "blocked-gradient", name="comparison_in_the_middle"),
    fault(no_grad_around_backbone, "blocked-gradient"),
    fault(detached_state, "blocked-gradient"),
    fault(clipped_loss, "blocked-gradient"),
    fault(frozen_middle_layer, "frozen-parameter"),
    fault(frozen_head, "frozen-parameter"),
    fault(layers_in_a_list, "frozen-parameter"),
    fault(optimizer_of_the_head, "frozen-parameter"),
    fault(head_replaced_after_optimizer, "frozen-parameter"),
    fault(partial(at_named_module, torch.log), "nonfinite", name="log_of_zero"),
    fault(partial(at_named_module, distances), "nonfinite", name="root_of_zero_backward"),
    fault(partial(at_named_module, over_feature_deviation), "nonfinite", name="zero_over_zero"),
    fault(masked_row, "nonfinite"),
    fault(softmax_by_hand, "nonfinite"),
    fault(nan_in_images, "nonfinite"),
    fault(nan_in_weights, "nonfinite"),
]
