"""Faults at the loss: its start, a softmax too many, labels that do not fit."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fault_models.activation import SmallCNN
from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, tokens, vectors


def small_mlp(outputs: int = NUM_CLASSES, *last: nn.Module) -> nn.Sequential:
    hidden = [nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs), *last)


def head_init_std_one() -> Arguments:
    layers = [nn.Linear(32, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, NUM_CLASSES)]
    nn.init.normal_(layers[-1].weight, std=2.0)
    return Arguments(nn.Sequential(*layers), *vectors())


class CosineHead(nn.Module):
    """Cosine of features and class centres, divided by a temperature that is too small."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.embed = nn.EmbeddingBag(40, 64)
        self.centres = nn.Parameter(torch.randn(NUM_CLASSES, 64))
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        features = F.normalize(self.embed(x), dim=1)
        return features @ F.normalize(self.centres, dim=1).T / self.temperature


def cosine_head_too_cold() -> Arguments:
    return Arguments(CosineHead(0.001), *tokens())


def loss_summed_over_the_batch() -> Arguments:
    return Arguments(SmallCNN(), *images(64), loss=nn.CrossEntropyLoss(reduction="sum"))


def softmax_module() -> Arguments:
    return Arguments(small_mlp(NUM_CLASSES, nn.Softmax(dim=1)), *vectors())


class Finished(nn.Module):
    """A network whose forward ends in `last`."""

    def __init__(self, network: nn.Module, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.network = network
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.network(x))


def functional_softmax() -> Arguments:
    model = Finished(SmallCNN(), partial(F.softmax, dim=-1))
    return Arguments(model, *images(), loss=nn.CrossEntropyLoss())


def sigmoid_then_cross_entropy() -> Arguments:
    return Arguments(small_mlp(NUM_CLASSES, nn.Sigmoid()), *vectors())


def sigmoid_twice() -> Arguments:
    inputs, labels = vectors()
    return Arguments(small_mlp(1, nn.Sigmoid()), inputs, labels[:, None] % 2.0, loss=nn.BCEWithLogitsLoss())


def softmax_of_the_loss() -> Arguments:
    """The criterion's own softmax and another in the user's loss."""
    return Arguments(small_mlp(), *vectors(), loss=lambda out, labels: F.cross_entropy(out.softmax(1), labels))


def labels_changed(change: Callable[[Tensor], Tensor]) -> Arguments:
    pictures, labels = images()
    return Arguments(SmallCNN(), pictures, change(labels))


def shape_broadcast() -> Arguments:
    """(N, 1) - (N,) is (N, N): every prediction is compared with every target. torch only warns."""
    inputs, labels = vectors()
    return Arguments(small_mlp(1), inputs, labels.float() / 9, loss=F.mse_loss)


CASES: list[Case] = [
    fault(head_init_std_one, "bad-initial-loss"),
    fault(cosine_head_too_cold, "bad-initial-loss"),
    fault(loss_summed_over_the_batch, "bad-initial-loss"),
    fault(softmax_module, "double-softmax"),
    fault(functional_softmax, "double-softmax"),
    fault(sigmoid_then_cross_entropy, "double-softmax"),
    fault(sigmoid_twice, "double-softmax"),
    fault(softmax_of_the_loss, "double-softmax"),
    fault(partial(labels_changed, lambda y: y + 1), "label-mismatch", name="labels_from_one"),
    fault(partial(labels_changed, lambda y: y - 1), "label-mismatch", name="labels_from_minus_one"),
    fault(partial(labels_changed, Tensor.float), "label-mismatch", name="labels_float"),
    fault(partial(labels_changed, lambda y: F.one_hot(y, 10)), "label-mismatch", name="labels_one_hot"),
    fault(partial(labels_changed, lambda y: y[:, None]), "label-mismatch", name="labels_as_column"),
    fault(shape_broadcast, "label-mismatch"),
]
