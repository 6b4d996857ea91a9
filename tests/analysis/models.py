"""Small hand-written models in several styles, on which the diagnosis is tried."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Unit(nn.Module):
    """A pre-activation unit; `add` makes the sum of input and branch."""

    def __init__(self, width: int, add=lambda x, f: x + f) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        return self.add(x, self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x)))))))


class Checkpointed(nn.Module):
    """A unit whose inside is recomputed in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.unit, self.reentrant = Unit(8), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.unit, x, use_reentrant=self.reentrant)


class Network(nn.Module):
    """Stem, units, norm, head."""

    def __init__(self, units: list[nn.Module], *, width: int = 8, classes: int = 10, final_norm: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.units = nn.Sequential(*units)
        self.norm = nn.BatchNorm2d(width) if final_norm else nn.Identity()
        self.head = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.units(self.stem(x)))).mean((2, 3)))


class Encoder(nn.Module):
    """A transformer that takes token ids by keyword and gives a dict, with a loss where labels are given."""

    def __init__(self, *, norm_first: bool = True, num_layers: int = 3) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(50, 16), nn.Embedding(12, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=norm_first)
        norm = nn.LayerNorm(16) if norm_first else None
        self.layers = nn.TransformerEncoder(layer, num_layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(16, 50)

    def forward(self, ids: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1]))
        padding = None if mask is None else mask == 0
        logits = self.head(self.layers(x, src_key_padding_mask=padding))
        found = {"logits": logits}
        if labels is not None:
            found = {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten())} | found
        return found


def mlp(depth: int, *, width: int = 64, act=nn.ReLU, std: float | None = None, norm: bool = False) -> nn.Sequential:
    """32 features to 10 classes; weights N(0, std^2), He's without `std`."""
    layers: list[nn.Module] = []
    for i in range(depth):
        linear = nn.Linear(32 if i == 0 else width, width)
        nn.init.normal_(linear.weight, std=(2 / linear.in_features) ** 0.5 if std is None else std)
        nn.init.zeros_(linear.bias)
        layers += [linear, *([nn.BatchNorm1d(width)] if norm else []), act()]
    return nn.Sequential(*layers, nn.Linear(width, 10))
