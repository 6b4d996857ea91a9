"""Healthy models written by hand, and our own, among them those that look ill."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import verydeep
from fault_models.activation import SmallCNN
from fault_models.case import NUM_CLASSES, Arguments, Case, healthy, images, tokens, vectors
from fault_models.loss import Finished, small_mlp
from fault_models.norm import SmallViT, trained
from fault_models.shortcut import PreNormAttention, PreNormFFN, TokenModel, preact


def ours(name: str, *, size: int = 16, count: int = 32, channels: int = 3, **options: Any) -> Arguments:
    return Arguments(verydeep.create_model(name, **options), *images(count, size=size, channels=channels))


def our_checkpointed_units() -> Arguments:
    arguments = ours("preact_resnet56_cifar")
    verydeep.checkpoint_units(arguments.model)
    return arguments


def mlp() -> Arguments:
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES)]
    return Arguments(nn.Sequential(*layers), *vectors())


def cnn_without_norm() -> Arguments:
    """In-place ReLU, pooling, dropout, two linear layers."""
    layers: list[nn.Module] = []
    for width, out in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(64, NUM_CLASSES)]
    return Arguments(nn.Sequential(*layers, *head), *images())


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.rnn = kind(32, 64, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(64, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(x))[0][:, -1])


def recurrent(kind: type[nn.LSTM] | type[nn.GRU]) -> Arguments:
    return Arguments(Recurrent(kind), *tokens())


def pre_norm_transformer() -> Arguments:
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [PreNormAttention(32), PreNormFFN(32, act_last=False)]
    return Arguments(TokenModel(layers, torch.add, final_norm=True), *tokens())


class PostNormTransformer(nn.Module):
    """Four layers, as the encoder of 2017 trains well; its own dropout of 0.1."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        self.position = nn.Parameter(torch.zeros(1, 12, dim))
        layer = nn.TransformerEncoderLayer(dim, 2, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x) + self.position).mean(1))


def post_norm_transformer() -> Arguments:
    return Arguments(PostNormTransformer(), *tokens())


class TiedLanguageModel(nn.Module):
    """A causal language model, its embedding also its head."""

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        layer = nn.TransformerEncoderLayer(dim, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 4, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 40, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.blocks(self.embed(x), mask=mask))


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def tied_language_model() -> Arguments:
    rows, _ = tokens()
    return Arguments(TiedLanguageModel(), rows[:, :-1], rows[:, 1:], loss=next_token_loss)


def dropout_everywhere() -> Arguments:
    layers: list[nn.Module] = [nn.Dropout(0.1)]
    for width in (32, 64, 64):
        layers += [nn.Linear(width, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.5)]
    return Arguments(nn.Sequential(*layers, nn.Linear(64, NUM_CLASSES)), *vectors())


class LayerScaleBlock(nn.Module):
    """Branches that start at 1e-6 of their size, each recomputed in the backward pass."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn = PreNormAttention(dim)
        self.mlp = PreNormFFN(dim, act_last=False)
        self.gamma_1 = nn.Parameter(1e-6 * torch.ones(dim))
        self.gamma_2 = nn.Parameter(1e-6 * torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * checkpoint(self.attn, x, use_reentrant=False)
        return x + self.gamma_2 * checkpoint(self.mlp, x, use_reentrant=False)


def layer_scale_checkpointed() -> Arguments:
    blocks: list[nn.Module] = [LayerScaleBlock(32) for _ in range(12)]
    return Arguments(TokenModel(blocks, lambda x, out: out, final_norm=True), *tokens())


class ZeroHeadViT(SmallViT):
    """Class token, position embedding and head all start at zero."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.pos_embed)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


def zero_head() -> Arguments:
    return Arguments(ZeroHeadViT(), *images())


class SqueezeExcite(nn.Module):
    """A gate of its channels; some of the squeezed ones are never on."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.reduce = nn.Conv2d(width, 4, 1)
        self.expand = nn.Conv2d(4, width, 1)
        self.fc = nn.Linear(width, NUM_CLASSES)
        nn.init.constant_(self.reduce.bias[:2], -5.0)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        gate = self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return self.fc((x * torch.sigmoid(gate)).mean((2, 3)))


def dead_squeeze_channels() -> Arguments:
    return Arguments(SqueezeExcite(), *images())


@dataclass
class Output:
    logits: Tensor
    features: Tensor


def shaped(wrap: Callable[[Tensor], Any]) -> Arguments:
    return Arguments(Finished(SmallCNN(), wrap), *images())


def fine_tuning() -> Arguments:
    """A trained trunk, frozen and in eval mode, and a fresh head in the optimizer."""
    batch = images()
    model = trained(SmallCNN(), *batch)
    model.fc = nn.Linear(32, NUM_CLASSES)
    for module in (model.conv1, model.bn1, model.conv2, model.bn2):
        module.requires_grad_(False).eval()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Arguments(model, *batch, optimizer=torch.optim.SGD(trainable, lr=0.05), steps=10)


def fresh_in_eval_mode() -> Arguments:
    arguments = ours("resnet20_cifar")
    arguments.model.eval()
    return arguments


def trained_in_eval_mode() -> Arguments:
    batch = images(64)
    return Arguments(trained(SmallCNN(), *batch, lr=0.02, steps=60).eval(), *batch)


def autoencoder() -> Arguments:
    pictures, _ = images(channels=1)
    layers = [nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()]
    layers += [nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU(), nn.ConvTranspose2d(8, 1, 2, 2)]
    return Arguments(nn.Sequential(*layers), pictures, pictures.clone(), loss=F.mse_loss)


def mixed_labels() -> Arguments:
    """Targets of mixup: rows of probabilities."""
    inputs, labels = vectors()
    rows = F.one_hot(labels, NUM_CLASSES).float()
    return Arguments(small_mlp(), inputs, 0.7 * rows + 0.3 * rows.flip(0))


def many_labels_each() -> Arguments:
    inputs, labels = vectors()
    targets = (labels[:, None] // torch.arange(1, 11) % 2).float()
    return Arguments(small_mlp(), inputs, targets, loss=nn.BCEWithLogitsLoss())


def log_softmax_and_nll() -> Arguments:
    return Arguments(small_mlp(NUM_CLASSES, nn.LogSoftmax(dim=1)), *vectors(), loss=F.nll_loss)


def without_labels() -> Arguments:
    return Arguments(SmallCNN(), images()[0])


def sgd_steps() -> Arguments:
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return Arguments(model, *images(), optimizer=optimizer, steps=20)


def adamw_steps() -> Arguments:
    """Two groups, as usual: decay for matrices, none for vectors."""
    model = SmallViT()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    rest = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    return Arguments(model, *images(), optimizer=torch.optim.AdamW(groups, lr=1e-3), steps=20)


def averaged_model() -> Arguments:
    """A copy of a trained model, weights and statistics of the same step."""
    batch = images(64)
    return Arguments(copy.deepcopy(trained(SmallCNN(), *batch, steps=60, lr=0.02)), *batch)


SCALES = ("skipinit", "rezero", "zero_init")
CASES: list[Case] = [
    healthy(partial(ours, "resnet20_cifar"), name="our_resnet20"),
    healthy(partial(ours, "preact_resnet56_cifar"), name="our_preact56"),
    healthy(partial(ours, "preact_resnet164_cifar", count=16), name="our_preact164"),
    healthy(partial(ours, "wide_resnet16_4_cifar", count=16), name="our_wide16_4"),
    healthy(partial(ours, "plain20_cifar"), name="our_plain20"),
    healthy(partial(ours, "densenet40_k12_cifar", count=16), name="our_densenet40"),
    healthy(partial(ours, "nf_resnet56_cifar", count=16), name="our_nf_resnet56"),
    healthy(partial(ours, "highway20", size=28, channels=1), name="our_highway20"),
    healthy(partial(ours, "resnet56_cifar", norm="none", scale="fixup"), name="our_fixup56"),
    *(healthy(partial(ours, "preact_resnet56_cifar", scale=scale), name=f"our_{scale}56") for scale in SCALES),
    healthy(partial(ours, "preact_resnet56_cifar", stochastic_depth=0.5), name="our_stochastic_depth56"),
    healthy(our_checkpointed_units),
    healthy(partial(preact, 6), name="preact_by_hand"),
    healthy(mlp),
    healthy(cnn_without_norm),
    healthy(partial(recurrent, nn.LSTM), name="lstm"),
    healthy(partial(recurrent, nn.GRU), name="gru"),
    healthy(pre_norm_transformer),
    healthy(post_norm_transformer),
    healthy(tied_language_model),
    healthy(dropout_everywhere),
    healthy(layer_scale_checkpointed),
    healthy(zero_head),
    healthy(dead_squeeze_channels),
    healthy(partial(shaped, lambda x: (x, x.detach())), name="output_tuple"),
    healthy(partial(shaped, lambda x: {"logits": x, "features": x.detach()}), name="output_dict"),
    healthy(partial(shaped, lambda x: Output(x, x.detach())), name="output_dataclass"),
    healthy(fine_tuning),
    healthy(fresh_in_eval_mode),
    healthy(trained_in_eval_mode),
    healthy(autoencoder),
    healthy(mixed_labels),
    healthy(many_labels_each),
    healthy(log_softmax_and_nll),
    healthy(without_labels),
    healthy(sgd_steps),
    healthy(adamw_steps),
    healthy(averaged_model),
]
