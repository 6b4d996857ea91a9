"""The residual unit, and the branches of the five orders and three kinds of unit. Networks are stacks of these.

Legend: W convolution, K residual units in the network, s stride.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from verydeep.errors import resolve
from verydeep.nn import fused
from verydeep.nn.chain import Step, projected, run, run_first
from verydeep.nn.chain import steps as fused_steps
from verydeep.nn.norm import NormFactory, norm_factory
from verydeep.nn.norm_act import NormAct
from verydeep.nn.scale import SCALES, ScalarBias, Scale
from verydeep.nn.shortcut import PadShortcut, ShortcutSpec, make_shortcut


class ResidualUnit(nn.Module):
    """y = h(x) + F(f^(x)), x' = f(y): a residual unit around any branch.

    With f^ and f left out it is x' = x + F(x): `ResidualUnit(nn.Sequential(nn.LayerNorm(d), mlp))`.

    Args:    branch: F; its output has the shape of h(x)
             shortcut: h; None for a plain unit, x' = f(F(f^(x))). A module that returns a pair
                 (h(x), factor) also scales the branch.
             preact: f^, before the branch
             share_preact: whether the shortcut too takes f^(x), instead of x
             drop: applied to the branch's output, stochastic depth for one
             postact: f, after the addition
    Shape:   (N, C_in, H, W) -> (N, C_out, ceil(H/s), ceil(W/s)), or whatever the branch maps
    Source:  He et al. 2016, Eq. 1, 2 and 9
    """

    def __init__(
        self,
        branch: nn.Module,
        *,
        shortcut: nn.Module | str | None = "identity",
        preact: nn.Module | None = None,
        share_preact: bool = False,
        drop: nn.Module | None = None,
        postact: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.preact = preact
        self.share_preact = share_preact
        self.branch = branch
        self.drop = drop
        self.shortcut = resolve("shortcut", shortcut, _WEIGHTLESS)() if isinstance(shortcut, str) else shortcut
        self.postact = postact

    def forward(self, x: Tensor) -> Tensor:
        if fused.suits(x) and (steps := self._fused_steps(x)):
            return self._forward_fused(steps, x)
        return self.transform(x, self.drop)

    def transform(self, x: Tensor, drop: Callable[[Tensor], Tensor] | None) -> Tensor:
        """The unit in plain operations, with `drop` in place of its own."""
        activated = x if self.preact is None else self.preact(x)
        y = self.branch(activated)
        if drop is not None:
            y = drop(y)
        if self.shortcut is not None:
            shortcut = self.shortcut(activated if self.share_preact else x)
            if isinstance(shortcut, tuple):
                shortcut, factor = shortcut
                y = factor * y
            y = shortcut + y
        return y if self.postact is None else self.postact(y)

    def _fused_steps(self, x: Tensor) -> list[Step] | None:
        """The branch in fused steps, f^ in the first of them unless it is shared; None where it must run plainly."""
        branch, shortcut = self.branch, self.shortcut
        if self.drop is not None or type(branch) is not nn.Sequential or not fused.unwatched(branch):
            return None
        if shortcut is not None and not (type(shortcut) in _ADDED and fused.unwatched(shortcut)):
            return None
        return fused_steps([self.preact, *branch] if self._preact_joins() and self.preact else branch, x)

    def _preact_joins(self) -> bool:
        return type(self.preact) is NormAct and not self.share_preact

    def _forward_fused(self, steps: list[Step], x: Tensor) -> Tensor:
        """The same as `forward`; the addition, and an f that is a ReLU after a norm, join the branch's last step."""
        activated = x if self.preact is None or self._preact_joins() else self.preact(x)
        if self.share_preact:
            x = activated
        first, *rest = steps
        if rest and self._preact_joins():
            activated, x = run_first(first, x)
            steps = rest
        h = None if self.shortcut is None else projected(self.shortcut, x)
        joins = steps[-1].ends_in_norm and type(self.postact) is nn.ReLU and fused.unwatched(self.postact)
        y = run(steps, activated, residual=h, relu=joins)
        return y if joins or self.postact is None else self.postact(y)


_ADDED = (nn.Identity, PadShortcut, nn.Sequential)  # shortcuts that give a tensor, and no factor on the branch
_WEIGHTLESS: dict[str, Callable[[], nn.Module | None]] = {"identity": nn.Identity, "none": lambda: None}


@dataclass(frozen=True)
class Order:
    """Where norm and activation stand in a unit. Each place holds "", "norm", "act" or "norm act".

    Args:    before: f^, at the unit's start
             between: after each convolution but the last
             last: after the last convolution, before the addition
             after: f, after the addition
    Source:  He et al. 2016, Fig. 4
    """

    before: str
    between: str
    last: str
    after: str


ORDERS: dict[str, Order] = {
    "original": Order(before="", between="norm act", last="norm", after="act"),
    "bn_after_addition": Order(before="", between="norm act", last="", after="norm act"),
    "relu_before_addition": Order(before="", between="norm act", last="norm act", after=""),
    "relu_only_preact": Order(before="act", between="norm act", last="norm", after=""),
    "full_preact": Order(before="norm act", between="norm act", last="", after=""),
}


def _conv3x3(in_channels: int, out_channels: int, *, stride: int, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=bias)


def _one_layer(in_channels: int, out_channels: int, *, stride: int, bias: bool, **_: object) -> list[nn.Conv2d]:
    return [_conv3x3(in_channels, out_channels, stride=stride, bias=bias)]


def _basic(in_channels: int, out_channels: int, *, stride: int, bias: bool, **_: object) -> list[nn.Conv2d]:
    return [
        _conv3x3(in_channels, out_channels, stride=stride, bias=bias),
        _conv3x3(out_channels, out_channels, stride=1, bias=bias),
    ]


def _bottleneck(
    in_channels: int, out_channels: int, *, stride: int, bias: bool, stride_on: str, widen: float
) -> list[nn.Conv2d]:
    inner = int(out_channels * widen) // UNITS["bottleneck"].expansion
    first, second = (stride, 1) if stride_on == "1x1" else (1, stride)
    return [
        nn.Conv2d(in_channels, inner, 1, stride=first, bias=bias),
        _conv3x3(inner, inner, stride=second, bias=bias),
        nn.Conv2d(inner, out_channels, 1, bias=bias),
    ]


@dataclass(frozen=True)
class UnitKind:
    """The convolutions of a branch, and output channels over the width of the stage."""

    convs: Callable[..., list[nn.Conv2d]]
    num_layers: int
    expansion: int


UNITS: dict[str, UnitKind] = {
    "one_layer": UnitKind(_one_layer, num_layers=1, expansion=1),
    "basic": UnitKind(_basic, num_layers=2, expansion=1),
    "bottleneck": UnitKind(_bottleneck, num_layers=3, expansion=4),
}


@dataclass(frozen=True)
class UnitSpec:
    """What all units of a network have in common.

    Args:    kind: of UNITS
             order: of ORDERS
             norm, num_groups: of `norm_factory`
             scale: of SCALES
             shortcut: see ShortcutSpec
             stride_on: 1x1 or 3x3, the bottleneck's convolution that has the stride
             bottleneck_widen: factor on a bottleneck's inner channels
    """

    kind: str = "basic"
    order: str = "full_preact"
    norm: str = "batch"
    num_groups: int | None = None
    scale: str = "none"
    shortcut: ShortcutSpec = ShortcutSpec()
    stride_on: str = "1x1"
    bottleneck_widen: float = 1.0

    def norm_factory(self) -> NormFactory | None:
        return norm_factory(self.norm, num_groups=self.num_groups)

    @property
    def conv_bias(self) -> bool:
        """Convolutions have biases where neither a norm's shift nor a scalar bias stands in for them."""
        return self.norm == "none" and not SCALES[self.scale].scalar_biases


def make_act(place: str, channels: int, spec: UnitSpec) -> nn.Module | None:
    """The module for a place of an order: norm, activation, both, or None for nothing.

    Where the spec has scalar biases (Fixup), one stands before the activation.
    """
    norm = spec.norm_factory()
    if place == "" or (place == "norm" and norm is None):
        return None
    if norm is not None:
        return {"norm": norm, "act": lambda _: nn.ReLU(), "norm act": lambda c: NormAct(norm(c))}[place](channels)
    if SCALES[spec.scale].scalar_biases:
        return nn.Sequential(ScalarBias(), nn.ReLU())
    return nn.ReLU()


def make_unit(
    spec: UnitSpec,
    in_channels: int,
    out_channels: int,
    *,
    stride: int,
    num_units: int,
    preact: bool = True,
    drop: nn.Module | None = None,
) -> ResidualUnit:
    """One unit of a network, not yet initialised.

    Args:    num_units: K, residual units of the network
             preact: False for the network's first unit, whose f^ the stem applies before the split
             drop: applied to the branch's output
    Raises:  UsageError: if the norm does not suit the channels.
    """
    order, scale = ORDERS[spec.order], SCALES[spec.scale]
    changes_dimension = stride > 1 or in_channels != out_channels
    return ResidualUnit(
        _make_branch(spec, order, scale, in_channels, out_channels, stride=stride, num_units=num_units),
        shortcut=make_shortcut(
            spec.shortcut,
            in_channels,
            out_channels,
            stride=stride,
            project=lambda: _make_projection(spec, order, in_channels, out_channels, stride=stride),
        ),
        preact=make_act(order.before, in_channels, spec) if preact else None,
        share_preact=changes_dimension,
        drop=drop,
        postact=make_act(order.after, out_channels, spec),
    )


def _make_projection(
    spec: UnitSpec, order: Order, in_channels: int, out_channels: int, *, stride: int
) -> nn.Sequential:
    """A 1x1 convolution, followed by a norm where the order's last convolution is."""
    projection = nn.Sequential()
    if SCALES[spec.scale].scalar_biases:
        projection.add_module("bias", ScalarBias())
    projection.add_module("conv", nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=spec.conv_bias))
    norm = spec.norm_factory()
    if norm is not None and "norm" in order.last:
        projection.add_module("norm", norm(out_channels))
    return projection


def _make_branch(
    spec: UnitSpec, order: Order, scale: Scale, in_channels: int, out_channels: int, *, stride: int, num_units: int
) -> nn.Sequential:
    kind = UNITS[spec.kind]
    convs = kind.convs(
        in_channels,
        out_channels,
        stride=stride,
        bias=spec.conv_bias,
        stride_on=spec.stride_on,
        widen=spec.bottleneck_widen,
    )
    branch = nn.Sequential()
    for i, conv in enumerate(convs, start=1):
        if scale.scalar_biases:
            branch.add_module(f"bias{i}", ScalarBias())
        branch.add_module(f"conv{i}", conv)
        place = order.between if i < len(convs) else order.last
        act = make_act(place, conv.out_channels, spec)
        if act is not None:
            branch.add_module(("norm" if place == "norm" else "act") + str(i), act)
    if scale.multiplier is not None:
        branch.add_module("multiplier", scale.multiplier(num_units))
    return branch


@torch.no_grad()
def scale_branch(unit: ResidualUnit, spec: UnitSpec, *, num_units: int) -> None:
    """Apply the spec's scale to a unit's weights, after they were initialised."""
    initialise = SCALES[spec.scale].initialise
    if initialise is None:
        return
    convs = [module for module in unit.branch.children() if isinstance(module, nn.Conv2d)]
    norm = unit.branch.get_submodule(f"norm{len(convs)}") if _ends_in_norm(spec) else None
    initialise(convs, norm, num_units)


def _ends_in_norm(spec: UnitSpec) -> bool:
    return ORDERS[spec.order].last == "norm" and spec.norm != "none"
