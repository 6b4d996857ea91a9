"""Faults of optimisation, seen over a few steps."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from fault_models.activation import SmallCNN
from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, tokens, vectors
from fault_models.norm import SmallViT

STEPS = 20


def cnn(make: Callable[[Iterator[nn.Parameter]], Optimizer]) -> Arguments:
    model = SmallCNN()
    return Arguments(model, *images(), optimizer=make(model.parameters()), steps=STEPS)


def vit(make: Callable[[Iterator[nn.Parameter]], Optimizer]) -> Arguments:
    model = SmallViT()
    return Arguments(model, *images(), optimizer=make(model.parameters()), steps=STEPS)


def mlp(make: Callable[[Iterator[nn.Parameter]], Optimizer]) -> Arguments:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    return Arguments(model, *vectors(), optimizer=make(model.parameters()), steps=STEPS)


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class ReversedFeatures(nn.Module):
    """The gradient reversal of a domain classifier, on the path of the main one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(40, 64)
        self.hidden = nn.Linear(64, 64)
        self.head = nn.Linear(64, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return Reverse.apply(self.head(F.relu(self.hidden(self.embed(x)))))


def reversed_gradient() -> Arguments:
    model = ReversedFeatures()
    return Arguments(model, *tokens(), optimizer=SGD(model.parameters(), lr=0.1), steps=STEPS)


RISING = "loss-not-decreasing"
DECAYED = partial(AdamW, lr=0.01, weight_decay=100.0)  # takes 100 % of each weight away
CASES: list[Case] = [
    fault(partial(mlp, partial(SGD, lr=100.0)), "update-too-large", name="sgd_lr_100"),
    fault(partial(cnn, partial(SGD, lr=10.0, momentum=0.9)), "update-too-large", name="momentum_lr_10"),
    fault(partial(vit, partial(Adam, lr=1.0)), "update-too-large", name="adam_lr_1"),
    fault(partial(mlp, DECAYED), "update-too-large", RISING, name="weight_decay_100"),
    fault(partial(cnn, partial(SGD, lr=1e-9)), "update-too-small", name="sgd_lr_1e-9"),
    fault(partial(vit, partial(AdamW, lr=1e-9)), "update-too-small", name="adamw_lr_1e-9"),
    fault(partial(mlp, partial(SGD, lr=0.0)), "update-too-small", name="lr_0"),
    fault(partial(mlp, partial(SGD, lr=0.1, maximize=True)), RISING, name="gradient_ascent"),
    fault(partial(vit, partial(AdamW, lr=1e-3, maximize=True)), RISING, name="adamw_ascent"),
    fault(reversed_gradient, RISING),
]
