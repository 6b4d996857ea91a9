"""Faults of activations and of the values that weights start from: dead, saturated, symmetric, constant."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, tokens, vectors


class SmallCNN(nn.Module):
    """Three convolutions with batch norm; the cases break one part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(32, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(x)))
        x = self.relu2(self.bn2(self.conv2(x)))
        x = self.relu3(self.conv3(x))
        return self.fc(self.pool(x).flatten(1))


def relu_after_bias_minus_10() -> Arguments:
    model = SmallCNN()
    nn.init.constant_(model.bn2.bias, -10.0)
    return Arguments(model, *images())


def negative_weights_after_relu() -> Arguments:
    """Inputs are above 0 and weights below: no unit is ever on."""
    hidden = nn.Linear(64, 64)
    nn.init.uniform_(hidden.weight, -0.2, 0.0)
    nn.init.constant_(hidden.bias, -0.1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), hidden, nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    return Arguments(model, *vectors())


class MostlyDead(nn.Module):
    """A functional ReLU that all but two of 128 units never pass, as after a step that was too large."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(32, 128)
        self.fc2 = nn.Linear(128, 128)
        self.head = nn.Linear(128, NUM_CLASSES)
        with torch.no_grad():
            self.fc2.bias[2:] = -20.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def mostly_dead_mlp() -> Arguments:
    return Arguments(MostlyDead(), *vectors())


def tanh_init_std_one() -> Arguments:
    layers = [nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, NUM_CLASSES)]
    for layer in layers[0:3:2]:
        nn.init.normal_(layer.weight, std=1.0)
    return Arguments(nn.Sequential(*layers), *vectors())


class SteepSigmoid(nn.Module):
    """Features pressed to 0 or 1 by a factor that was meant to be small."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(32, 64)
        self.fc2 = nn.Linear(64, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.sigmoid(200.0 * self.fc1(x)))


def steep_sigmoid() -> Arguments:
    return Arguments(SteepSigmoid(), *vectors())


class UnscaledAttention(nn.Module):
    """softmax(Q K') V without 1/sqrt(d), queries and keys of size about 1 in 256 dimensions."""

    def __init__(self, dim: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)
        self.norm_out = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, NUM_CLASSES)
        nn.init.normal_(self.qkv.weight, std=dim**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.proj(self.softmax(q @ k.transpose(1, 2)) @ v)
        return self.head(self.norm_out(x).mean(1))


def attention_without_scale() -> Arguments:
    return Arguments(UnscaledAttention(), *tokens())


def constant_init() -> Arguments:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    for layer in (model[0], model[2]):
        nn.init.constant_(layer.weight, 0.01)
        nn.init.zeros_(layer.bias)
    return Arguments(model, *vectors())


def all_weights_zero() -> Arguments:
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, NUM_CLASSES))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return Arguments(model, *vectors())


def convolutions_of_ones() -> Arguments:
    """The norm behind it hides the size of the weights, not that they are equal."""
    model = SmallCNN()
    for layer in (model.conv1, model.conv2):
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    return Arguments(model, *images())


class MeanOverBatch(nn.Module):
    """Meant to average over the tokens, dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.fc = nn.Linear(32, 64)
        self.head = nn.Linear(64, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc(self.embed(x)))
        return self.head(x.mean(dim=(0, 1), keepdim=True).expand(len(x), 1, -1).squeeze(1))


def mean_over_batch() -> Arguments:
    return Arguments(MeanOverBatch(), *tokens())


class CausalClassToken(nn.Module):
    """A causal mask and the class token first: it sees only itself."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, 2, stride=2)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 3, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), patches], dim=1)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
        return self.head(self.blocks(x, mask=mask)[:, 0])


def causal_class_token() -> Arguments:
    return Arguments(CausalClassToken(), *images())


CASES: list[Case] = [
    fault(relu_after_bias_minus_10, "dead-activation"),
    fault(negative_weights_after_relu, "dead-activation"),
    fault(mostly_dead_mlp, "dead-activation"),
    fault(tanh_init_std_one, "saturated-activation"),
    fault(steep_sigmoid, "saturated-activation"),
    fault(attention_without_scale, "saturated-activation"),
    fault(constant_init, "symmetric-init"),
    fault(all_weights_zero, "symmetric-init", "constant-output"),
    fault(convolutions_of_ones, "symmetric-init"),
    fault(mean_over_batch, "constant-output"),
    fault(causal_class_token, "constant-output"),
]
