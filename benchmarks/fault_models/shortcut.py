"""Faults of shortcuts and branches: absent, scaled, gated, cut, one-sided, dead."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fault_models.case import NUM_CLASSES, Arguments, Case, fault, images, init_normal, tokens, vectors
from verydeep import ResNet, ResNetSpec


class OriginalUnit(nn.Module):
    """Convolution, norm, ReLU, convolution, norm; `join` makes the output of x and the branch."""

    def __init__(self, width: int, join: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.join(x, self.bn2(self.conv2(out)))


class OriginalNet(nn.Module):
    def __init__(self, num_units: int, join: Callable[[Tensor, Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(*(OriginalUnit(width, join) for _ in range(num_units)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(F.relu(self.bn1(self.conv1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def joined(num_units: int, join: Callable[[Tensor, Tensor], Tensor]) -> Arguments:
    return Arguments(init_normal(OriginalNet(num_units, join)), *images())


def forgotten_addition() -> Arguments:
    return joined(50, lambda x, branch: F.relu(branch))


def shattered_cnn() -> Arguments:
    """The same with 16 units: gradients keep their size, and are noise."""
    return joined(16, lambda x, branch: F.relu(branch))


def tanh_after_addition() -> Arguments:
    return joined(60, lambda x, branch: torch.tanh(x + branch))


def clamp_after_addition() -> Arguments:
    return joined(60, lambda x, branch: (x + branch).clamp(0, 1))


def relu_after_addition() -> Arguments:
    return joined(100, lambda x, branch: F.relu(x + branch))


def shortcut_times_half() -> Arguments:
    return joined(50, lambda x, branch: 0.5 * x + branch)


def shortcut_times_two() -> Arguments:
    return joined(50, lambda x, branch: 2 * x + branch)


def ours(**options: object) -> Arguments:
    spec = ResNetSpec(**(dict(stage_units=(20, 15, 15), width=8) | options))
    return Arguments(ResNet(spec), *images(size=16))


class PreNormFFN(nn.Module):
    """`act_last` puts the activation at the end of the branch, where it was meant to be between the layers."""

    def __init__(self, dim: int, *, act_last: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 2 * dim)
        self.fc2 = nn.Linear(2 * dim, dim)
        self.act_last = act_last

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc2(F.relu(self.fc1(self.norm(x))))
        return F.relu(x) if self.act_last else x


class PreNormAttention(nn.Module):
    def __init__(self, dim: int, num_heads: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        heads = (*x.shape[:2], 3, self.num_heads, -1)
        q, k, v = self.qkv(self.norm(x)).reshape(heads).permute(2, 0, 3, 1, 4)  # (N, heads, T, d) each
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TokenModel(nn.Module):
    """Embedding, layers, head; what is done with a layer's output is the case's."""

    def __init__(
        self, layers: list[nn.Module], join: Callable[[Tensor, Tensor], Tensor], *, dim: int = 32, final_norm: bool
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, dim)
        self.layers = nn.ModuleList(layers)
        self.join = join
        self.norm = nn.LayerNorm(dim) if final_norm else nn.Identity()
        self.head = nn.Linear(dim, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = self.join(x, layer(x))
        return self.head(self.norm(x).mean(1))


def transformer(
    num_blocks: int,
    join: Callable[[Tensor, Tensor], Tensor] = torch.add,
    *,
    act_last: bool = False,
    final_norm: bool = True,
) -> Arguments:
    layers: list[nn.Module] = []
    for _ in range(num_blocks):
        layers += [PreNormAttention(32), PreNormFFN(32, act_last=act_last)]
    return Arguments(init_normal(TokenModel(layers, join, final_norm=final_norm)), *tokens())


class HighwayLayer(nn.Module):
    """y = g F(x) + (1 - g) x, the gate's bias as torch draws it: about 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.plain = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(x))
        return gate * F.relu(self.plain(x)) + (1 - gate) * x


def highway_gates_half_open() -> Arguments:
    layers = [HighwayLayer(64) for _ in range(50)]
    return Arguments(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), *layers, nn.Linear(64, NUM_CLASSES)), *vectors())


class Add(nn.Module):
    """What nn.Sequential users write: a container that adds."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


def norm_act_linear(width: int, out: int) -> list[nn.Module]:
    return [nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, out)]


def dropout_on_shortcuts() -> Arguments:
    units = [Add(nn.Sequential(*norm_act_linear(64, 64), *norm_act_linear(64, 64)), nn.Dropout(0.5)) for _ in range(50)]
    return Arguments(nn.Sequential(nn.Linear(32, 64), *units, *norm_act_linear(64, NUM_CLASSES)), *vectors())


def sequential_without_final_norm() -> Arguments:
    units = [Add(nn.Sequential(*norm_act_linear(64, 64), *norm_act_linear(64, 64))) for _ in range(40)]
    return Arguments(nn.Sequential(nn.Linear(32, 64), *units, nn.Linear(64, NUM_CLASSES)), *vectors())


class SigmoidBranch(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.fc(self.norm(x)))


def sigmoid_branches() -> Arguments:
    units = [SigmoidBranch(64) for _ in range(50)]
    return Arguments(nn.Sequential(nn.Linear(32, 64), *units, *norm_act_linear(64, NUM_CLASSES)), *vectors())


class PreActUnit(nn.Module):
    """As widely copied, with three ways to get it wrong.

    Args:    raw: the projection reads x, not the activated x
             zero_gamma: the last norm's gamma starts at zero, as is right for the original order only
             relu_last: an activation after the second convolution
    """

    def __init__(
        self, in_planes: int, planes: int, *, raw: bool = False, zero_gamma: bool = False, relu_last: bool = False
    ) -> None:
        super().__init__()
        stride = 1 if in_planes == planes else 2
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.downsample = nn.Conv2d(in_planes, planes, 1, stride, bias=False) if stride > 1 else None
        self.raw, self.relu_last = raw, relu_last
        if zero_gamma:
            nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = x
        if self.downsample is not None:
            shortcut = self.downsample(x if self.raw else out)
        out = self.conv2(F.relu(self.bn2(self.conv1(out))))
        return shortcut + (F.relu(out) if self.relu_last else out)


class PreActNet(nn.Module):
    def __init__(self, units_a_stage: int, *, final_norm: bool = True, **options: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.stages = nn.ModuleList()
        for before, planes in ((8, 8), (8, 16), (16, 32)):
            widths = [before] + [planes] * (units_a_stage - 1)
            self.stages.append(nn.Sequential(*(PreActUnit(width, planes, **options) for width in widths)))
        self.norm = nn.BatchNorm2d(32) if final_norm else None
        self.fc = nn.Linear(32, NUM_CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        for stage in self.stages:
            x = stage(x)
        if self.norm is not None:
            x = F.relu(self.norm(x))
        return self.fc(x.mean((2, 3)))


def preact(units_a_stage: int, **options: bool) -> Arguments:
    return Arguments(init_normal(PreActNet(units_a_stage, **options)), *images(size=16))


class RawProjectionStage(nn.Module):
    """Functional: stage changes written out, the projection on the raw input."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm_a, self.norm_b = nn.GroupNorm(4, width), nn.GroupNorm(4, out)
        self.conv_a = nn.Conv2d(width, out, 3, padding=1)
        self.conv_b = nn.Conv2d(out, out, 3, padding=1)
        self.project = nn.Conv2d(width, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv_a(F.silu(self.norm_a(x)))
        return self.project(x) + self.conv_b(F.silu(self.norm_b(out)))


def raw_projection_functional() -> Arguments:
    stages = [RawProjectionStage(8, 16), RawProjectionStage(16, 24), RawProjectionStage(24, 32)]
    head = [nn.GroupNorm(4, 32), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, NUM_CLASSES)]
    return Arguments(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *stages, *head), *images())


class DoublyZero(nn.Module):
    """A scalar that starts at zero times a branch whose last layer starts at zero: neither gets a gradient."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)
        self.alpha = nn.Parameter(torch.zeros(()))
        nn.init.zeros_(self.fc2.weight)
        nn.init.zeros_(self.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.alpha * self.fc2(F.relu(self.fc1(x)))


def scale_and_layer_zero() -> Arguments:
    units = [DoublyZero(64) for _ in range(8)]
    return Arguments(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), *units, nn.Linear(64, NUM_CLASSES)), *vectors())


class ZeroScaleBlock(nn.Module):
    """timm's way of writing a block, gamma_2 and the layer before it zero; the attention is sound."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.attn = PreNormAttention(dim)
        self.mlp = PreNormFFN(dim, act_last=False)
        self.gamma_1 = nn.Parameter(1e-5 * torch.ones(dim))
        self.gamma_2 = nn.Parameter(torch.zeros(dim))
        nn.init.zeros_(self.mlp.fc2.weight)
        nn.init.zeros_(self.mlp.fc2.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma_1 * self.attn(x)
        return x + self.gamma_2 * self.mlp(x)


def layer_scale_and_layer_zero() -> Arguments:
    blocks: list[nn.Module] = [ZeroScaleBlock(32) for _ in range(6)]
    return Arguments(TokenModel(blocks, lambda x, out: out, final_norm=True), *tokens())


IDENTITY, CUT = "shortcut-not-identity", "shortcut-truncated"
CASES: list[Case] = [
    fault(forgotten_addition, "no-shortcut"),
    fault(shattered_cnn, "no-shortcut", "gradient-shattering"),
    fault(partial(transformer, 24, lambda x, out: out), "no-shortcut", name="transformer_without_shortcuts"),
    fault(partial(ours, shortcut="none"), "no-shortcut", name="our_plain_102"),
    fault(shortcut_times_half, IDENTITY),
    fault(shortcut_times_two, IDENTITY, "variance-explosion", "gradient-explosion"),
    fault(highway_gates_half_open, IDENTITY, "variance-collapse", "gradient-vanishing"),
    fault(dropout_on_shortcuts, IDENTITY),
    fault(partial(transformer, 24, lambda x, out: 0.5 * (x + out)), IDENTITY, name="transformer_halved_sums"),
    fault(partial(ours, shortcut="constant", branch_scale=0.5), IDENTITY, name="our_constant_shortcut"),
    fault(partial(ours, shortcut="conv1x1"), IDENTITY, name="our_conv1x1_shortcut"),
    fault(partial(ours, shortcut="exclusive_gate", gate_bias=0.0), IDENTITY, name="our_exclusive_gate"),
    fault(partial(ours, order="bn_after_addition"), IDENTITY, CUT, name="our_bn_after_addition"),
    fault(tanh_after_addition, CUT),
    fault(clamp_after_addition, CUT, "gradient-explosion"),
    fault(relu_after_addition, CUT),
    fault(partial(ours, stage_units=(34, 33, 33)), CUT, name="our_original_order_202"),
    fault(partial(ours, order="relu_before_addition"), "nonnegative-branch", name="our_relu_before_addition"),
    fault(partial(preact, 12, relu_last=True), "nonnegative-branch", name="preact_relu_last"),
    fault(partial(transformer, 24, act_last=True), "nonnegative-branch", name="transformer_relu_last"),
    fault(sigmoid_branches, "nonnegative-branch"),
    fault(partial(preact, 12, final_norm=False), "missing-final-norm", name="preact_without_final_norm"),
    fault(partial(transformer, 16, final_norm=False), "missing-final-norm", name="transformer_without_final_norm"),
    fault(sequential_without_final_norm, "missing-final-norm"),
    fault(partial(preact, 3, raw=True), "raw-projection", name="preact_raw_projection"),
    fault(raw_projection_functional, "raw-projection"),
    fault(partial(preact, 3, zero_gamma=True), "dead-branch", name="preact_zero_gamma"),
    fault(scale_and_layer_zero, "dead-branch"),
    fault(layer_scale_and_layer_zero, "dead-branch"),
]
