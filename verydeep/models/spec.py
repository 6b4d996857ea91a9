"""A network declared: `ResNetSpec`, what goes together, and the depth rules. Builds nothing."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from verydeep.errors import UsageError, resolve_name
from verydeep.models.check import MOST_WIDTH, probability, stages, whole_numbers
from verydeep.nn.norm import NORMS
from verydeep.nn.scale import SCALES
from verydeep.nn.shortcut import SHORTCUTS, ShortcutSpec
from verydeep.nn.unit import ORDERS, UNITS, UnitSpec


@dataclass(frozen=True)
class ResNetSpec:
    """A residual (or plain) network: stem, stages of units, head.

    Args:    stage_units: residual units of each stage; the first unit of every stage but the first has stride 2
             width: channels of the first stage, before the unit's expansion; doubles with each stage
             stem: cifar (3x3 convolution) or imagenet (7x7 with stride 2, then 3x3 max pooling with stride 2)
             stem_order: act_first (the stem ends in norm-ReLU, then pools) or pool_first: it pools the bare
                 convolution, and the first unit has its norm-ReLU like any other, so that its shortcut takes raw x
                 where the dimension stays (timm's `resnetv2_*`)
             widen: factor on the stages' channels; the stem keeps `width`
             stochastic_depth: drop probability of the last unit; unit l of L has l/L of it
             num_classes: outputs of the head
             in_channels: channels of an image
             unit, order, norm, num_groups, scale, stride_on, bottleneck_widen: see UnitSpec
             shortcut, option, gate_bias, shortcut_scale, branch_scale, shortcut_dropout: see ShortcutSpec
    Raises:  UsageError: if a name is unknown or two choices do not go together.
    """

    stage_units: tuple[int, ...]
    width: int = 16
    stem: str = "cifar"
    stem_order: str = "act_first"
    unit: str = "basic"
    order: str = "original"
    shortcut: str = "identity"
    option: str = "A"
    norm: str = "batch"
    num_groups: int | None = None
    scale: str = "none"
    stochastic_depth: float = 0.0
    widen: float = 1.0
    bottleneck_widen: float = 1.0
    stride_on: str = "1x1"
    gate_bias: float = -6.0
    shortcut_scale: float = 0.5
    branch_scale: float = 1.0
    shortcut_dropout: float = 0.5
    num_classes: int = 10
    in_channels: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "stage_units", tuple(self.stage_units))
        for name in _NAMES:
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"{name} {getattr(self, name)!r}: must be a name; one of {', '.join(_NAMES[name])}")
        if "+" in self.scale:
            raise UsageError(
                f"scale {self.scale!r}: one scaling a network; each (Fixup and SkipInit among them) already decides "
                "how a branch starts and ends"
            )
        for name, known in _NAMES.items():
            object.__setattr__(self, name, resolve_name(name, getattr(self, name), known))
        _check_numbers(self)
        _check_combination(self)

    @property
    def num_units(self) -> int:
        return sum(self.stage_units)

    @property
    def depth(self) -> int:
        """Weighted layers on the longest path: stem, branches, head; projections not counted."""
        return 2 + UNITS[self.unit].num_layers * self.num_units

    @property
    def stage_channels(self) -> tuple[int, ...]:
        """Output channels of each stage."""
        expansion = UNITS[self.unit].expansion
        return tuple(int(self.width * 2**i * self.widen) * expansion for i in range(len(self.stage_units)))

    def unit_spec(self) -> UnitSpec:
        return UnitSpec(
            kind=self.unit,
            order=self.order,
            norm=self.norm,
            num_groups=self.num_groups,
            scale=self.scale,
            stride_on=self.stride_on,
            bottleneck_widen=self.bottleneck_widen,
            shortcut=ShortcutSpec(
                kind=self.shortcut,
                option=self.option,
                shortcut_scale=self.shortcut_scale,
                branch_scale=self.branch_scale,
                gate_bias=self.gate_bias,
                dropout=self.shortcut_dropout,
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values that `ResNetSpec(**...)` takes back; what a checkpoint records."""
        return dataclasses.asdict(self) | {"stage_units": list(self.stage_units)}


_NAMES = {
    "stem": ("cifar", "imagenet"),
    "stem_order": ("act_first", "pool_first"),
    "unit": UNITS,
    "order": ORDERS,
    "shortcut": SHORTCUTS,
    "option": ("A", "B"),
    "norm": NORMS,
    "scale": SCALES,
    "stride_on": ("1x1", "3x3"),
}


def _check_numbers(spec: ResNetSpec) -> None:
    stages("stage_units", spec.stage_units, of="unit")
    whole_numbers(width=spec.width, num_classes=spec.num_classes, in_channels=spec.in_channels)
    for name in ("widen", "bottleneck_widen"):
        if not 0 < getattr(spec, name) <= MOST_WIDTH:
            raise UsageError(f"{name} {getattr(spec, name)}: must be above 0 and at most {MOST_WIDTH}")
    probability(stochastic_depth=spec.stochastic_depth, shortcut_dropout=spec.shortcut_dropout)
    if min(spec.stage_channels) < UNITS[spec.unit].expansion:
        raise UsageError(f"widen {spec.widen}: leaves no channel of width {spec.width}; nearest {1 / spec.width:g}")


def _check_combination(spec: ResNetSpec) -> None:
    """Refuse what does not go together, saying why."""
    kind, order = UNITS[spec.unit], ORDERS[spec.order]
    if spec.scale == "fixup" and spec.norm != "none":
        raise UsageError(f"scale fixup with norm {spec.norm}: Fixup takes the place of the norm; give norm none")
    if spec.scale == "fixup" and kind.num_layers < 2:
        raise UsageError(
            "scale fixup with unit one_layer: its factor L^(-1/(2m-2)) divides by zero at m = 1; "
            "give unit basic or bottleneck, or scale skipinit"
        )
    if spec.scale in ("zero_init", "fixup") and order.last == "norm act":
        raise UsageError(
            f"scale {spec.scale} with order {spec.order}: the ReLU that ends the branch passes no gradient at 0, so a "
            "branch that starts at zero stays there; give scale skipinit or rezero"
        )
    if spec.stem_order == "pool_first" and (spec.stem != "imagenet" or order.before != "norm act"):
        raise UsageError(
            f"stem_order pool_first with stem {spec.stem}, order {spec.order}: is for stem imagenet, which pools, "
            "and order full_preact, whose units begin with norm-ReLU"
        )
    if spec.order == "bn_after_addition" and spec.norm == "none":
        raise UsageError("order bn_after_addition with norm none: without a norm it is the order original; give that")
    if spec.stride_on == "3x3" and spec.unit != "bottleneck":
        raise UsageError(f"stride_on 3x3 with unit {spec.unit}: its convolutions are all 3x3; it is for bottleneck")
    if spec.bottleneck_widen != 1 and spec.unit != "bottleneck":
        raise UsageError(f"bottleneck_widen {spec.bottleneck_widen} with unit {spec.unit}: is for bottleneck")
    if spec.unit == "bottleneck" and int(spec.stage_channels[0] * spec.bottleneck_widen) < kind.expansion:
        raise UsageError(
            f"bottleneck_widen {spec.bottleneck_widen}: leaves no inner channel of {spec.stage_channels[0]}; "
            f"nearest {kind.expansion / spec.stage_channels[0]:g}"
        )
    if spec.num_groups is not None and spec.norm != "group":
        raise UsageError(f"num_groups {spec.num_groups} with norm {spec.norm}: is for norm group")
    if spec.option == "A" and spec.shortcut not in ("none", "conv1x1") and spec.stage_channels[0] < spec.width:
        raise UsageError(
            f"option A with widen {spec.widen}: it adds channels and cannot take away those of the stem, "
            f"{spec.width} to {spec.stage_channels[0]}; give option B, or widen of at least 1"
        )
    if spec.shortcut == "none":
        _check_plain(spec)


def _check_plain(spec: ResNetSpec) -> None:
    if spec.scale != "none":
        raise UsageError(
            f"scale {spec.scale} with shortcut none: a plain network has no shortcut to carry the signal past a small "
            "branch; give scale none"
        )
    if spec.stochastic_depth > 0:
        raise UsageError(
            f"stochastic_depth {spec.stochastic_depth} with shortcut none: dropping the branch of a plain unit drops "
            "the signal; give 0"
        )


def units_of_depth(depth: int, *, unit: str | None, num_stages: int = 3) -> tuple[str, int]:
    """The kind of unit and units a stage that give a CIFAR network its depth.

    depth = m S n + 2 with m layers a unit, S stages, n units a stage: 6n+2 (basic), 9n+2 (bottleneck), 3n+2 (one
    layer). A depth that fits basic and bottleneck is basic, except 164, unless `unit` says otherwise.

    Raises:  UsageError: if no n >= 1 gives the depth, with the nearest that exist.
    Source:  He et al. 2016 (Deep residual learning), section 4.2; He et al. 2016, appendix

    >>> units_of_depth(110, unit=None), units_of_depth(164, unit=None), units_of_depth(1001, unit=None)
    (('basic', 18), ('bottleneck', 18), ('bottleneck', 111))
    """
    if unit is not None:
        candidates = [resolve_name("unit", unit, UNITS)]
    else:
        candidates = ["bottleneck", "basic"] if depth == 164 else ["basic", "bottleneck"]
    for kind in candidates:
        units, rest = divmod(depth - 2, UNITS[kind].num_layers * num_stages)
        if rest == 0 and units >= 1:
            return kind, units
    rules = (_rule_and_nearest(depth, kind, num_stages) for kind in candidates)
    raise UsageError(f"depth {depth}: CIFAR networks have depth {' or '.join(rules)}")


def _rule_and_nearest(depth: int, kind: str, num_stages: int) -> str:
    period = UNITS[kind].num_layers * num_stages
    below = max(1, (depth - 2) // period)
    nearest = sorted({below * period + 2, (below + 1) * period + 2}) if depth > 2 else [period + 2]
    return f"{period}n+2 ({kind}; nearest {', '.join(map(str, nearest))})"
