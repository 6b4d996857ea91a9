"""How torchvision and timm name the tensors of the networks that both they and we have; `foreign` translates by it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from verydeep.errors import UsageError
from verydeep.nn.unit import UNITS

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The names of one library's tensors.

    Args:    owner: whose they are, in words
             order, stem_order: of the networks that have them
             stem, head: names of the first convolution and of the last layer
             unit: pattern of a unit's prefix, its groups the numbers of stage and unit; stages count from `first_stage`
             renames: (pattern, replacement) from our names to theirs, in this order
             head_is_conv: whether the last layer is a 1x1 convolution, its weight (classes, C, 1, 1)
    """

    owner: str
    order: str
    stem_order: str
    stem: str
    head: str
    unit: str
    first_stage: int
    renames: tuple[tuple[str, Any], ...]
    head_is_conv: bool = False

    def name(self, ours: str) -> str:
        """Their name of one of our tensors."""
        for pattern, replacement in self.renames:
            ours = re.sub(pattern, replacement, ours)
        return ours


RESNET = Layout(
    owner="torchvision's ResNets and timm's resnet*",
    order="original",
    stem_order="act_first",
    stem="conv1",
    head="fc",
    unit=r"layer(\d+)\.(\d+)\.",
    first_stage=1,
    renames=(
        (r"^stem\.conv\.", "conv1."),
        (r"^stem\.act\.norm\.", "bn1."),
        (r"^stages\.(\d+)\.", lambda match: f"layer{int(match[1]) + 1}."),
        (r"branch\.conv(\d)\.", r"conv\1."),
        (r"branch\.(?:act(\d)\.norm|norm(\d))\.", lambda match: f"bn{match[1] or match[2]}."),
        (r"shortcut\.conv\.", "downsample.0."),
        (r"shortcut\.norm\.", "downsample.1."),
        (r"^head\.linear\.", "fc."),
    ),
)
RESNETV2 = Layout(
    owner="timm's resnetv2_*",
    order="full_preact",
    stem_order="pool_first",
    stem="stem.conv",
    head="head.fc",
    unit=r"stages\.(\d+)\.blocks\.(\d+)\.",
    first_stage=0,
    renames=(
        (r"^stages\.(\d+)\.(\d+)\.", r"stages.\1.blocks.\2."),
        (r"preact\.norm\.", "norm1."),
        (r"branch\.conv(\d)\.", r"conv\1."),
        (r"branch\.act(\d)\.norm\.", lambda match: f"norm{int(match[1]) + 1}."),
        (r"shortcut\.conv\.", "downsample.conv."),
        (r"^head\.act\.norm\.", "norm."),
        (r"^head\.linear\.", "head.fc."),
    ),
    head_is_conv=True,
)
LAYOUTS = (RESNET, RESNETV2)

# a tensor that only another design has -> what it is
_OTHER = (
    (r"^(conv1\.0|stem\.conv1)\.weight$", "a stem of several convolutions (timm's c, d, s and t variants)"),
    (r"\.downsample\.1\.weight$", "a shortcut that pools before it projects (timm's d and t variants)"),
    (r"^stem\.norm\.", "units without pre-activation (timm's resnetv2 with preact=False)"),
    (r"\.(se|attn)\.", "attention in the units (seresnet, ecaresnet)"),
)


def layout_of(state: State) -> Layout:
    """The layout that the tensors' names have.

    Raises:  UsageError: if they have none, or are of a design that verydeep does not build, naming it.
    """
    for layout in LAYOUTS:
        if any(re.match(layout.unit, name) for name in state):
            _refuse_other(state, layout)
            return layout
    some = ", ".join(list(state)[:3]) or "none"
    raise UsageError(
        f"weights: their names ({some}, ...) are not those of {' or of '.join(layout.owner for layout in LAYOUTS)}"
    )


def _refuse_other(state: State, layout: Layout) -> None:
    for pattern, meaning in _OTHER:
        for name, tensor in state.items():
            is_vector = name.endswith("downsample.1.weight") and tensor.dim() == 1  # the norm after a projection
            if re.search(pattern, name) and not is_vector:
                raise UsageError(f"weights: {name} is of {meaning}, which verydeep has not")
    if not any(name.endswith("running_mean") for name in state):
        raise UsageError(
            "weights: no norm has running statistics, so it is not batch norm (timm's gn and bit variants)"
        )
    for name in (f"{layout.stem}.weight", f"{layout.head}.weight"):
        if name not in state:
            raise UsageError(f"weights: {name} is missing; {layout.owner} have it")


def declared(state: State, layout: Layout) -> dict[str, Any]:
    """What the tensors' names and shapes say of the network, as fields of ResNetSpec; not where a bottleneck strides.

    Raises:  UsageError: if the stem is another than a 7x7 convolution.
    """
    stem, head = state[f"{layout.stem}.weight"], state[f"{layout.head}.weight"]
    if head.dim() < 2:
        raise UsageError(f"weights: {layout.head}.weight is {tuple(head.shape)}; it must have a row for each class")
    if tuple(stem.shape[2:]) != (7, 7) or not stem.numel():
        raise UsageError(
            f"weights: {layout.stem}.weight is {tuple(stem.shape)}; only the 7x7 stem says what follows it"
        )
    counts: dict[int, int] = {}
    for match in filter(None, (re.match(layout.unit, name) for name in state)):
        stage, unit = int(match[1]) - layout.first_stage, int(match[2])
        if max(stage, unit) >= len(state):
            raise UsageError(f"weights: {match.string} is of more units than there are tensors")
        counts[stage] = max(counts.get(stage, 0), unit + 1)
    first = _unit(state, layout, (layout.first_stage, 0))
    kind = "bottleneck" if "conv3.weight" in first else "basic"
    last = f"conv{UNITS[kind].num_layers}.weight"
    for name in ("conv1.weight", last):
        if name not in first or first[name].dim() != 4 or not first[name].numel():
            raise UsageError(f"weights: the first unit has no {name}; {layout.owner} have it")
    expansion, out, inner = UNITS[kind].expansion, len(first[last]), len(first["conv1.weight"])
    return dict(
        stage_units=tuple(counts.get(stage, 0) for stage in range(max(counts) + 1)),
        unit=kind,
        width=len(stem),
        in_channels=stem.shape[1],
        num_classes=len(head),
        widen=out / (expansion * len(stem)),
        bottleneck_widen=inner * expansion / out if kind == "bottleneck" else 1.0,
        order=layout.order,
        stem="imagenet",
        stem_order=layout.stem_order,
        option="B",
    )


def _unit(state: State, layout: Layout, number: tuple[int, int]) -> dict[str, Tensor]:
    """The tensors of one unit, by their names within it."""
    matches = [(re.match(layout.unit, name), name, tensor) for name, tensor in state.items()]
    return {
        name.removeprefix(match[0]): tensor
        for match, name, tensor in matches
        if match and (int(match[1]), int(match[2])) == number
    }
