"""Faults of the size of signals and gradients: too large, too small, shattered."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, init_normal, tokens, vectors


def mlp(depth: int, *, width: int = 64, activation: type[nn.Module] = nn.ReLU, norm: bool = False) -> nn.Sequential:
    """Linear layers with activations between, all in one nn.Sequential."""
    layers: list[nn.Module] = []
    for i in range(depth - 1):
        layers.append(nn.Linear(width if i else 32, width))
        if norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(activation())
    return nn.Sequential(*layers, nn.Linear(width, NUM_CLASSES))


def relu_mlp_default_init() -> Arguments:
    return Arguments(mlp(100), *vectors())


def sigmoid_mlp() -> Arguments:
    return Arguments(mlp(30, activation=nn.Sigmoid), *vectors())


def tanh_mlp_small_init() -> Arguments:
    return Arguments(init_normal(mlp(30, activation=nn.Tanh), 0.05), *vectors())


def relu_mlp_init_std_one() -> Arguments:
    return Arguments(init_normal(mlp(20), 1.0), *vectors())


def norm_mlp_without_shortcut() -> Arguments:
    """Batch norm holds the signal and multiplies gradients by about 1.2 a layer. Source: Yang et al. 2019"""
    return Arguments(mlp(100, norm=True), *vectors())


def shattered_mlp() -> Arguments:
    """Batch norm and He's init in 32 layers: signals keep their size, gradients become noise."""
    return Arguments(init_normal(mlp(32, width=128, norm=True)), *vectors())


class SmallInitVGG(nn.Module):
    """Convolutions as numbered attributes, called by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1)
        for i in range(2, 9):
            setattr(self, f"conv{i}", nn.Conv2d(16, 16, 3, padding=1))
        self.fc = nn.Linear(16, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for i in range(1, 9):
            x = F.relu(getattr(self, f"conv{i}")(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def vgg_init_1e_4() -> Arguments:
    return Arguments(init_normal(SmallInitVGG(), 1e-4), *images())


class NormFreeUnit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


def residual_cnn_without_norm() -> Arguments:
    units = [NormFreeUnit(8) for _ in range(50)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, NUM_CLASSES)]
    return Arguments(init_normal(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *units, *head)), *images())


class FunctionalResidualMLP(nn.Module):
    """Weights in a ParameterList, every operation functional."""

    def __init__(self, num_units: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Parameter(torch.randn(width, 32) / 32**0.5)
        self.weights = nn.ParameterList(torch.randn(width, width) * (2 / width) ** 0.5 for _ in range(num_units))
        self.head = nn.Parameter(torch.randn(NUM_CLASSES, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.stem)
        for weight in self.weights:
            x = x + F.linear(F.relu(x), weight)
        return F.linear(x, self.head)


def functional_residual_mlp() -> Arguments:
    return Arguments(FunctionalResidualMLP(100), *vectors())


class NormFreeTransformerBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(x, x, x, need_weights=False)[0]
        return x + self.fc2(F.gelu(self.fc1(x)))


class NormFreeTransformer(nn.Module):
    def __init__(self, num_blocks: int, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        self.blocks = nn.ModuleList(NormFreeTransformerBlock(dim) for _ in range(num_blocks))
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def transformer_without_norm() -> Arguments:
    return Arguments(init_normal(NormFreeTransformer(12)), *tokens())


class Recurrent(nn.Module):
    """One cell for 60 steps, its recurrent matrix orthogonal times 2.5."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cell = nn.RNNCell(8, width, nonlinearity="relu")
        self.head = nn.Linear(width, NUM_CLASSES)
        nn.init.orthogonal_(self.cell.weight_hh, gain=2.5)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), self.cell.hidden_size)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state)


def recurrent_relu() -> Arguments:
    series = vectors(32, features=480)
    return Arguments(Recurrent(), series[0].reshape(32, 60, 8), series[1])


class DeepPostNorm(nn.Module):
    """The encoder of 2017 with He's init: each norm after an addition takes half of the shortcut's variance."""

    def __init__(self, num_layers: int, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 4 * dim, dropout=0.0, batch_first=True, norm_first=False)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


def deep_post_norm_transformer() -> Arguments:
    model = DeepPostNorm(100)
    for parameter in model.encoder.parameters():
        if parameter.ndim > 1:
            nn.init.kaiming_normal_(parameter)
    return Arguments(model, *tokens())


LARGE = ("variance-explosion", "gradient-explosion")
SMALL = ("variance-collapse", "gradient-vanishing")
CASES: list[Case] = [
    fault(relu_mlp_default_init, *SMALL, "no-shortcut"),
    fault(sigmoid_mlp, *SMALL),
    fault(tanh_mlp_small_init, *SMALL),
    fault(vgg_init_1e_4, *SMALL),
    fault(relu_mlp_init_std_one, *LARGE),
    fault(residual_cnn_without_norm, *LARGE),
    fault(functional_residual_mlp, *LARGE),
    fault(transformer_without_norm, *LARGE),
    fault(recurrent_relu, *LARGE),
    fault(norm_mlp_without_shortcut, "gradient-explosion", "no-shortcut"),
    fault(shattered_mlp, "gradient-shattering", "no-shortcut"),
    fault(deep_post_norm_transformer, *SMALL, "shortcut-not-identity"),
]
