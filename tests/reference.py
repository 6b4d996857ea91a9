"""Naive norms, residual units and networks, written from the papers alone, that tests compare the library with.

Nothing here imports verydeep. Weights and buffers are read by name from a dict; a `spec` is any object with the
attributes `order`, `unit`, `shortcut`, `option`, `norm`, `scale`, ... of a declared network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-5


def standardise(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """(x - mean) / sqrt(variance + eps), both over `axes`, the variance biased."""
    mean = x.mean(axes, keepdim=True)
    variance = (x - mean).square().mean(axes, keepdim=True)
    return (x - mean) / torch.sqrt(variance + EPS)


def affine(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return gamma[:, None, None] * x + beta[:, None, None]


def batch_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return affine(standardise(x, (0, 2, 3)), gamma, beta)


def frozen_batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Batch norm in evaluation: by the running statistics."""
    return affine((x - mean[:, None, None]) / torch.sqrt(variance[:, None, None] + EPS), gamma, beta)


def ghost_batch_norm(x: Tensor, gamma: Tensor, beta: Tensor, sizes: list[int]) -> Tensor:
    """Batch norm of each part of the batch alone, as on several devices."""
    return torch.cat([batch_norm(part, gamma, beta) for part in x.split(sizes)])


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return affine(standardise(x, (1, 2, 3)), gamma, beta)


def instance_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return affine(standardise(x, (2, 3)), gamma, beta)


def group_norm(x: Tensor, gamma: Tensor, beta: Tensor, num_groups: int) -> Tensor:
    size = x.shape[1] // num_groups
    return affine(torch.cat([standardise(part, (1, 2, 3)) for part in x.split(size, 1)], 1), gamma, beta)


def rms_norm(x: Tensor, gamma: Tensor) -> Tensor:
    return gamma[:, None, None] * x / torch.sqrt(x.square().mean((1, 2, 3), keepdim=True) + EPS)


def running_statistics(x: Tensor, mean: Tensor, variance: Tensor, momentum: float) -> tuple[Tensor, Tensor]:
    """Running mean and variance after one batch; the variance that enters is the unbiased one."""
    count = x.numel() // x.shape[1]
    centred = x - x.mean((0, 2, 3), keepdim=True)
    unbiased = centred.square().sum((0, 2, 3)) / (count - 1)
    return (1 - momentum) * mean + momentum * x.mean((0, 2, 3)), (1 - momentum) * variance + momentum * unbiased


PCA_EIGENVALUES = [0.2175, 0.0188, 0.0045]
PCA_EIGENVECTORS = [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]  # in columns


def pca_jitter(pixels: list[int], alphas: list[float]) -> list[float]:
    """Krizhevsky et al. 2012: the RGB values, 0..255, with [p1, p2, p3] [a1 l1, a2 l2, a3 l3]^T added; not rounded."""
    result = []
    for channel, value in enumerate(pixels):
        shift = sum(PCA_EIGENVECTORS[channel][i] * alphas[i] * PCA_EIGENVALUES[i] for i in range(3))
        result.append(min(max(value + 255 * shift, 0.0), 255.0))
    return result


def largest_num_groups(channels: int) -> int:
    """At most 32 groups, of at least 4 channels where there are 4."""
    return max([g for g in range(1, 33) if channels % g == 0 and channels // g >= 4], default=1)


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, themselves, so that gradients are of the module's own parameters."""
    return dict(module.named_parameters()) | dict(module.named_buffers())


@dataclass(frozen=True)
class Unit:
    """Where the weights of one residual unit are, and what its operations are called.

    Args:    first: whether it is the network's first unit
    """

    weights: Mapping[str, Tensor]
    spec: Any
    prefix: str = ""
    stride: int = 1
    num_units: int = 1
    first: bool = False
    training: bool = True

    def __getitem__(self, name: str) -> Tensor:
        return self.weights[self.prefix + name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.weights.get(self.prefix + name, default)

    def norm(self, name: str, x: Tensor) -> Tensor:
        """BN, or what stands in its place."""
        match self.spec.norm:
            case "none":
                return x
            case "rms":
                return rms_norm(x, self[f"{name}.weight"])
            case "batch" if not self.training:
                names = ("weight", "bias", "running_mean", "running_var")
                return frozen_batch_norm(x, *[self[f"{name}.{each}"] for each in names])
            case "group":
                groups = self.spec.num_groups or largest_num_groups(x.shape[1])
                return group_norm(x, self[f"{name}.weight"], self[f"{name}.bias"], groups)
        function = {"batch": batch_norm, "layer": layer_norm, "instance": instance_norm}[self.spec.norm]
        return function(x, self[f"{name}.weight"], self[f"{name}.bias"])

    def relu(self, name: str, x: Tensor) -> Tensor:
        """ReLU; under Fixup a scalar bias comes first."""
        x = x + self.get(f"{name}.0.bias", 0.0)
        return x * (x > 0)

    def norm_relu(self, name: str, x: Tensor) -> Tensor:
        return self.relu(name, self.norm(f"{name}.norm", x))

    def conv(self, k: int, x: Tensor) -> Tensor:
        """The k-th convolution of the branch; under Fixup a scalar bias comes first."""
        strided = 2 if self.spec.unit == "bottleneck" and self.spec.stride_on == "3x3" else 1
        weight = self[f"branch.conv{k}.weight"]
        x = x + self.get(f"branch.bias{k}.bias", 0.0)
        stride = self.stride if k == strided else 1
        return F.conv2d(x, weight, self.get(f"branch.conv{k}.bias"), stride, padding=weight.shape[-1] // 2)

    def project(self, name: str, x: Tensor) -> Tensor:
        """1x1 convolution, with BN where the unit has BN after its last weight."""
        x = x + self.get(f"{name}.bias.bias", 0.0)
        x = F.conv2d(x, self[f"{name}.conv.weight"], self.get(f"{name}.conv.bias"), self.stride)
        if self.spec.order in ("original", "relu_before_addition", "relu_only_preact"):
            return self.norm(f"{name}.norm", x)
        return x

    def resize(self, name: str, x: Tensor, branch: Tensor) -> Tensor:
        """x itself, or by option A or B where the dimension changes."""
        if x.shape == branch.shape:
            return x
        if self.spec.option == "B":
            return self.project(name, x)
        x = x[:, :, :: self.stride, :: self.stride]
        zeros = torch.zeros(len(x), branch.shape[1] - x.shape[1], *x.shape[2:], dtype=x.dtype)
        return torch.cat([x, zeros], 1)

    def scaled(self, branch: Tensor) -> Tensor:
        if self.spec.scale == "inverse_sqrt":
            return branch / self.num_units**0.5
        return branch * self.get("branch.multiplier.weight", 1.0)

    def add(self, x: Tensor, branch: Tensor) -> Tensor:
        """h(x) + F, a row of Table 1 (dropout in evaluation)."""
        branch = self.scaled(branch)
        match self.spec.shortcut:
            case "none":
                return branch
            case "identity":
                return self.resize("shortcut", x, branch) + branch
            case "constant":
                h = self.resize("shortcut.base", x, branch)
                return self.spec.shortcut_scale * h + self.spec.branch_scale * branch
            case "exclusive_gate":
                g = self.gate(x)
                return (1 - g) * self.resize("shortcut.base", x, branch) + g * branch
            case "shortcut_gate":
                return (1 - self.gate(x)) * self.resize("shortcut.base", x, branch) + branch
            case "conv1x1":
                return self.project("shortcut", x) + branch
            case "dropout":
                assert not self.training
                return self.resize("shortcut.0", x, branch) + branch
        raise AssertionError(self.spec.shortcut)

    def gate(self, x: Tensor) -> Tensor:
        """g(x) = sigmoid(W_g x + b_g)."""
        z = F.conv2d(x, self["shortcut.gate.weight"], self["shortcut.gate.bias"], self.stride)
        return 1 / (1 + torch.exp(-z))


def shortcut_input(x: Tensor, activated: Tensor, branch: Tensor) -> Tensor:
    """What the shortcut of a pre-activation unit takes: x, but f^(x) where the dimension changes."""
    return x if x.shape == branch.shape else activated


def original(u: Unit, x: Tensor) -> Tensor:
    """Fig. 4(a): W-BN-ReLU-W-BN-add-ReLU."""
    W, BN, BNReLU = u.conv, lambda k, x: u.norm(f"branch.norm{k}", x), lambda k, x: u.norm_relu(f"branch.act{k}", x)
    match u.spec.unit:
        case "one_layer":
            branch = BN(1, W(1, x))
        case "basic":
            branch = BN(2, W(2, BNReLU(1, W(1, x))))
        case "bottleneck":
            branch = BN(3, W(3, BNReLU(2, W(2, BNReLU(1, W(1, x))))))
    return u.relu("postact", u.add(x, branch))


def bn_after_addition(u: Unit, x: Tensor) -> Tensor:
    """Fig. 4(b): W-BN-ReLU-W-add-BN-ReLU."""
    W, BNReLU = u.conv, lambda k, x: u.norm_relu(f"branch.act{k}", x)
    match u.spec.unit:
        case "one_layer":
            branch = W(1, x)
        case "basic":
            branch = W(2, BNReLU(1, W(1, x)))
        case "bottleneck":
            branch = W(3, BNReLU(2, W(2, BNReLU(1, W(1, x)))))
    return u.norm_relu("postact", u.add(x, branch))


def relu_before_addition(u: Unit, x: Tensor) -> Tensor:
    """Fig. 4(c): W-BN-ReLU-W-BN-ReLU-add."""
    W, BNReLU = u.conv, lambda k, x: u.norm_relu(f"branch.act{k}", x)
    match u.spec.unit:
        case "one_layer":
            branch = BNReLU(1, W(1, x))
        case "basic":
            branch = BNReLU(2, W(2, BNReLU(1, W(1, x))))
        case "bottleneck":
            branch = BNReLU(3, W(3, BNReLU(2, W(2, BNReLU(1, W(1, x))))))
    return u.add(x, branch)


def relu_only_branch(u: Unit, activated: Tensor) -> Tensor:
    """Fig. 4(d) after its first ReLU: W-BN-ReLU-W-BN."""
    W, BN, BNReLU = u.conv, lambda k, x: u.norm(f"branch.norm{k}", x), lambda k, x: u.norm_relu(f"branch.act{k}", x)
    match u.spec.unit:
        case "one_layer":
            return BN(1, W(1, activated))
        case "basic":
            return BN(2, W(2, BNReLU(1, W(1, activated))))
    return BN(3, W(3, BNReLU(2, W(2, BNReLU(1, W(1, activated))))))


def relu_only_preact(u: Unit, x: Tensor) -> Tensor:
    """Fig. 4(d): ReLU-W-BN-ReLU-W-BN-add."""
    activated = x if u.first else u.relu("preact", x)
    branch = relu_only_branch(u, activated)
    return u.add(shortcut_input(x, activated, branch), branch)


def full_preact_branch(u: Unit, activated: Tensor) -> Tensor:
    """Fig. 4(e) after its first BN-ReLU: W-BN-ReLU-W."""
    W, BNReLU = u.conv, lambda k, x: u.norm_relu(f"branch.act{k}", x)
    match u.spec.unit:
        case "one_layer":
            return W(1, activated)
        case "basic":
            return W(2, BNReLU(1, W(1, activated)))
    return W(3, BNReLU(2, W(2, BNReLU(1, W(1, activated)))))


def full_preact(u: Unit, x: Tensor) -> Tensor:
    """Fig. 4(e): BN-ReLU-W-BN-ReLU-W-add."""
    activated = x if u.first else u.norm_relu("preact", x)
    branch = full_preact_branch(u, activated)
    return u.add(shortcut_input(x, activated, branch), branch)


UNITS: dict[str, Callable[[Unit, Tensor], Tensor]] = {
    "original": original,
    "bn_after_addition": bn_after_addition,
    "relu_before_addition": relu_before_addition,
    "relu_only_preact": relu_only_preact,
    "full_preact": full_preact,
}


def units(whole: Unit) -> list[Unit]:
    """The units of a network, given its weights as a Unit without a prefix."""
    places = [(s, i) for s, count in enumerate(whole.spec.stage_units) for i in range(count)]
    return [
        replace(
            whole,
            prefix=f"stages.{s}.{i}.",
            stride=2 if s > 0 and i == 0 else 1,
            num_units=len(places),
            first=(s, i) == (0, 0),
        )
        for s, i in places
    ]


def stem(whole: Unit, images: Tensor) -> Tensor:
    """conv-BN-ReLU (3x3), or conv-BN-ReLU-pool (7x7 with stride 2, 3x3 pooling with stride 2)."""
    weight, bias = whole["stem.conv.weight"], whole.get("stem.conv.bias")
    if whole.spec.stem == "cifar":
        return whole.norm_relu("stem.act", F.conv2d(images, weight, bias, padding=1))
    x = whole.norm_relu("stem.act", F.conv2d(images, weight, bias, stride=2, padding=3))
    windows = F.pad(x, (1, 1, 1, 1), value=-torch.inf).unfold(2, 3, 2).unfold(3, 3, 2)
    return windows.amax((-1, -2))


def logits(whole: Unit, x: Tensor) -> Tensor:
    """Mean over positions, then the linear layer; under Fixup a scalar bias comes between."""
    features = x.mean((2, 3)) + whole.get("head.bias.bias", 0.0)
    return features @ whole["head.linear.weight"].T + whole["head.linear.bias"]


def network(module: nn.Module, spec: Any, images: Tensor) -> Tensor:
    """A whole network forward, by the weights of `module`."""
    whole = Unit(tensors(module), spec, training=module.training)
    x = stem(whole, images)
    for unit in units(whole):
        x = UNITS[spec.order](unit, x)
    if spec.order == "relu_only_preact":
        x = whole.relu("head.act", x)
    if spec.order == "full_preact":
        x = whole.norm_relu("head.act", x)
    return logits(whole, x)


def asymmetric_network(module: nn.Module, spec: Any, images: Tensor) -> Tensor:
    """Fig. 5(b), left of Eq. 9: y_{l+1} = y_l + F(f^(y_l)), where f^ follows each addition and only F takes its result.

    Two signals travel: y and f^(y). The activation that follows the addition of unit l has the weights that
    `module` keeps in unit l + 1, and after the last unit those in the head.
    """
    whole = Unit(tensors(module), spec, training=module.training)
    branch_of = {"relu_only_preact": relu_only_branch, "full_preact": full_preact_branch}[spec.order]
    activate = {"relu_only_preact": whole.relu, "full_preact": whole.norm_relu}[spec.order]
    everyone = units(whole)
    names = [f"{unit.prefix}preact" for unit in everyone[1:]] + ["head.act"]
    y = activated = stem(whole, images)  # the first unit: activated before the split
    for unit, name in zip(everyone, names, strict=True):
        branch = branch_of(unit, activated)
        y = unit.add(shortcut_input(y, activated, branch), branch)
        activated = activate(name, y)
    return logits(whole, activated)


def lars(
    w: Tensor, g: Tensor, v: Tensor, *, lr: float, momentum: float, decay: float, trust: float, nesterov: bool = False
) -> tuple[Tensor, Tensor]:
    """One step of LARS on one tensor: the new weights and the new momentum. You et al. 2017, Algorithm 1."""
    size, slope = w.norm().item(), g.norm().item()
    local = trust * size / (slope + decay * size) if w.dim() > 1 and size > 0 and slope > 0 else 1.0
    scaled = local * (g + decay * w)
    v = momentum * v + scaled
    return w - lr * (scaled + momentum * v if nesterov else v), v
