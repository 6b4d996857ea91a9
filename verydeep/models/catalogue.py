"""Names of networks: `create_model` and `list_models`. A name is resolved by the patterns in FAMILIES."""

import dataclasses
import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from verydeep.errors import UsageError, nearest, resolve_name
from verydeep.models.densenet import DenseNet, DenseNetSpec
from verydeep.models.highway import Highway, HighwaySpec
from verydeep.models.nfnet import NFResNet, NFResNetSpec
from verydeep.models.related import RELATED_MODELS, is_related, related_spec
from verydeep.models.resnet import ResNet
from verydeep.models.spec import ResNetSpec, units_of_depth
from verydeep.nn.unit import UNITS

IMAGENET_UNITS: dict[int, tuple[str, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
    101: ("bottleneck", (3, 4, 23, 3)),
    152: ("bottleneck", (3, 8, 36, 3)),
    200: ("bottleneck", (3, 24, 36, 3)),
}


def _cifar(prefix: str, depth: str, *, unit: str | None) -> dict[str, Any]:
    """Plain, original or pre-activation network for small images; bottlenecks project, the others pad."""
    kind, units = units_of_depth(int(depth), unit=unit)
    spec = dict(stage_units=(units,) * 3, unit=kind, option="B" if kind == "bottleneck" else "A")
    if prefix == "plain":
        return spec | dict(shortcut="none")
    return spec | dict(order="full_preact" if prefix == "preact_resnet" else "original")


def _wide_cifar(depth: str, widen: str, *, unit: str | None) -> dict[str, Any]:
    """Wide ResNet: pre-activation, 6n+4 as its authors count (a projection on the longest path), projections.

    Source:  Zagoruyko and Komodakis 2016, Table 1
    """
    units, rest = divmod(int(depth) - 4, 6)
    if rest or units < 1:
        low = max(1, units) * 6 + 4
        raise UsageError(f"depth {depth}: wide CIFAR networks have depth 6n+4 (nearest {low}, {low + 6})")
    _check_unit(unit, "basic", depth)
    return dict(stage_units=(units,) * 3, order="full_preact", option="B", widen=float(widen))


def _check_unit(unit: str | None, own: str, depth: str) -> None:
    """Refuse a kind of unit that would give the network another depth than its name says."""
    if unit is not None and resolve_name("unit", unit, UNITS) != own:
        raise UsageError(f"unit {unit}: the network of depth {depth} has {own} units; nearest: {own}")


def _imagenet(prefix: str | None, depth: str, *, unit: str | None) -> dict[str, Any]:
    if int(depth) not in IMAGENET_UNITS:
        raise UsageError(f"depth {depth}: ImageNet networks have depth {', '.join(map(str, IMAGENET_UNITS))}")
    kind, stage_units = IMAGENET_UNITS[int(depth)]
    _check_unit(unit, kind, depth)
    order = "full_preact" if prefix else "original"
    return dict(
        stage_units=stage_units, unit=kind, order=order, option="B", width=64, stem="imagenet", num_classes=1000
    )


def _wide_imagenet(depth: str, widen: str, *, unit: str | None) -> dict[str, Any]:
    """Bottlenecks with wider 3x3 convolutions. Source: Zagoruyko and Komodakis 2016, section 3.3"""
    if depth not in ("50", "101", "152", "200"):
        raise UsageError(f"depth {depth}: wide ImageNet networks are bottlenecks, of depth 50, 101, 152 or 200")
    return _imagenet(None, depth, unit=unit) | dict(bottleneck_widen=float(widen))


FAMILIES: dict[str, Callable[..., dict[str, Any]]] = {
    r"(plain|resnet|preact_resnet)([0-9]{1,6})_cifar": _cifar,
    r"wide_resnet([0-9]{1,6})_([0-9]{1,6})_cifar": _wide_cifar,
    r"(preact_)?resnet([0-9]{1,6})": _imagenet,
    r"wide_resnet([0-9]{1,6})_([0-9]{1,6})": _wide_imagenet,
}

_CIFAR_DEPTHS = (20, 32, 44, 56, 110, 164, 1001, 1202)
RESNETS: tuple[str, ...] = (
    *(f"resnet{depth}_cifar" for depth in _CIFAR_DEPTHS),
    *(f"preact_resnet{depth}_cifar" for depth in _CIFAR_DEPTHS),
    *(f"plain{depth}_cifar" for depth in (20, 32, 44, 56, 110)),
    *(f"wide_resnet{name}_cifar" for name in ("16_4", "28_10", "40_4")),
    *(f"resnet{depth}" for depth in IMAGENET_UNITS),
    *(f"preact_resnet{depth}" for depth in IMAGENET_UNITS),
    "wide_resnet50_2",
    "wide_resnet101_2",
)
MODELS = (*RESNETS, *RELATED_MODELS)
Spec = ResNetSpec | HighwaySpec | DenseNetSpec | NFResNetSpec

# type of spec by name -> the spec, the network
NETWORKS: dict[str, tuple[Callable[..., Spec], Callable[..., nn.Module]]] = {
    "ResNetSpec": (ResNetSpec, ResNet),
    "HighwaySpec": (HighwaySpec, Highway),
    "DenseNetSpec": (DenseNetSpec, DenseNet),
    "NFResNetSpec": (NFResNetSpec, NFResNet),
}
OPTIONS = tuple(field.name for field in dataclasses.fields(ResNetSpec))


def model_spec(name: str, **options: Any) -> ResNetSpec:
    """The declaration of the network `name`, with options of ResNetSpec in place of the name's own.

    Raises:  UsageError: if the name or an option is unknown, the depth illegal, or two options do not go together.

    >>> model_spec("preact_resnet1001_cifar").stage_units
    (111, 111, 111)
    """
    for option in options:
        if option not in OPTIONS:
            raise UsageError(f"option {option!r}: unknown; nearest: {', '.join(nearest(option, OPTIONS))}")
    for pattern, family in FAMILIES.items():
        match = re.fullmatch(pattern, name)
        if match:
            spec = ResNetSpec(**family(*match.groups(), unit=options.get("unit")) | options)
            _check_used(spec, options)
            return spec
    raise UsageError(f"model {name!r}: unknown; nearest: {', '.join(nearest(name, MODELS))}")


# option -> the shortcuts that it is for
OPTION_OF_SHORTCUT = {
    "gate_bias": ("exclusive_gate", "shortcut_gate"),
    "shortcut_scale": ("constant",),
    "branch_scale": ("constant",),
    "shortcut_dropout": ("dropout",),
}


def _check_used(spec: ResNetSpec, options: Mapping[str, Any]) -> None:
    """Refuse an option that would do nothing."""
    for option, shortcuts in OPTION_OF_SHORTCUT.items():
        if option in options and spec.shortcut not in shortcuts:
            raise UsageError(
                f"{option} {options[option]}: is for shortcut {' or '.join(shortcuts)}, not {spec.shortcut}"
            )


def create_model(name: str, **options: Any) -> nn.Module:
    """A network by name, freshly initialised from torch's generator.

    Names: `[preact_]resnet{depth}_cifar`, `plain{depth}_cifar`, `wide_resnet{depth}_{k}_cifar`,
    `[preact_]resnet{18,34,50,101,152,200}`, `wide_resnet{50,101}_{k}`; any legal depth; and those of `related`.

    Args:    options: any of ResNetSpec by name (num_classes, order, unit, shortcut, option, norm, scale, widen, ...);
                 of a related network, any of its own spec
    Raises:  UsageError: if the name or an option is unknown, the depth illegal, or two options do not go together.

    >>> sum(p.numel() for p in create_model("resnet20_cifar").parameters())
    269722
    """
    return build_network(_spec(name, **options))


def build_network(spec: Spec) -> nn.Module:
    """The network that a spec declares, freshly initialised."""
    return NETWORKS[type(spec).__name__][1](spec)


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """Plain values, the type among them, from which `spec_from_dict` makes the spec again; what a file records."""
    return {"type": type(spec).__name__} | spec.to_dict()


def spec_from_dict(values: Mapping[str, Any]) -> Spec:
    """The spec of recorded values.

    Raises:  UsageError: if they declare no network that this version knows.
    """
    fields = dict(values)
    kind = fields.pop("type", None)
    if not isinstance(kind, str) or kind not in NETWORKS:
        raise UsageError(f"network of type {kind!r}: unknown to this version; it knows {', '.join(NETWORKS)}")
    try:
        return NETWORKS[kind][0](**fields)
    except (TypeError, OverflowError) as error:
        raise UsageError(f"network of type {kind}: its declaration is of another version ({error})") from None


def option_names(name: str) -> tuple[str, ...]:
    """The options that the network `name` takes, whether or not the name is legal without them."""
    return tuple(field.name for field in dataclasses.fields(related_spec(name))) if is_related(name) else OPTIONS


def _spec(name: str, **options: Any) -> Spec:
    return related_spec(name, **options) if is_related(name) else model_spec(name, **options)


def list_models(pattern: str = "*") -> list[str]:
    """The listed names that match a shell pattern, or contain it; other legal depths resolve too.

    >>> list_models("preact*cifar")[0]
    'preact_resnet20_cifar'
    """
    return [name for name in MODELS if fnmatch.fnmatch(name, pattern) or pattern in name]


def describe(name: str) -> dict[str, Any]:
    """Name, depth, units, kind of unit, order and number of parameters, counted without allocating them.

    The depth of a wide network is below the one in its name, whose authors count a projection on the longest path.
    """
    with torch.device("meta"):
        model = create_model(name)
    spec: Any = model.spec
    return {
        "name": name,
        "depth": spec.depth,
        "units": getattr(spec, "num_units", None),
        "unit": getattr(spec, "unit", None),
        "order": getattr(spec, "order", None),
        "params": sum(parameter.numel() for parameter in model.parameters()),
    }
