"""Names of the designs related to residual networks: highway, DenseNet, NF-ResNet. `create_model` builds them.

`UNet` answers with a map, not with one label an image, and has no name here.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from verydeep.errors import UsageError, nearest
from verydeep.models.densenet import DenseNetSpec, cifar_densenet, imagenet_densenet
from verydeep.models.highway import HighwaySpec
from verydeep.models.nfnet import NFResNetSpec
from verydeep.models.spec import units_of_depth

RelatedSpec = HighwaySpec | DenseNetSpec | NFResNetSpec


def _highway(depth: str) -> HighwaySpec:
    """Linear layers of 50 units; the output layer is not counted. Source: Srivastava et al. 2015, Fig. 1"""
    return HighwaySpec(_highway_units(depth, layers_beside=1))


def _conv_highway(depth: str, width: str) -> HighwaySpec:
    """3x3 convolutions; the output layer is counted. Source: Srivastava et al. 2015, Table 1"""
    return HighwaySpec(_highway_units(depth, layers_beside=2), width=int(width), conv=True)


def _highway_units(depth: str, *, layers_beside: int) -> int:
    if int(depth) <= layers_beside:
        raise UsageError(f"depth {depth}: leaves no highway layer; nearest {layers_beside + 1}")
    return int(depth) - layers_beside


def _cifar_densenet(compressed: str | None, depth: str, growth: str) -> DenseNetSpec:
    return cifar_densenet(int(depth), int(growth), bottleneck=compressed is not None)


def _nf_resnet(depth: str) -> NFResNetSpec:
    """Bottlenecks throughout: 26 is not the network of basic units that a ResNet of that depth would be."""
    if int(depth) not in NF_UNITS:
        raise UsageError(f"depth {depth}: ImageNet NF-ResNets have depth {', '.join(map(str, NF_UNITS))}")
    return NFResNetSpec(NF_UNITS[int(depth)], width=64, unit="bottleneck", stem="imagenet", num_classes=1000)


def _cifar_nf_resnet(depth: str) -> NFResNetSpec:
    unit, count = units_of_depth(int(depth), unit=None)
    return NFResNetSpec((count,) * 3, unit=unit)


NF_UNITS: dict[int, tuple[int, ...]] = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}

RELATED_FAMILIES: dict[str, Callable[..., RelatedSpec]] = {
    r"highway([0-9]{1,6})": _highway,
    r"highway([0-9]{1,6})_conv([0-9]{1,6})": _conv_highway,
    r"densenet(_bc)?([0-9]{1,6})_k([0-9]{1,6})_cifar": _cifar_densenet,
    r"densenet([0-9]{1,6})": lambda depth: imagenet_densenet(int(depth)),
    r"nf_resnet([0-9]{1,6})": _nf_resnet,
    r"nf_resnet([0-9]{1,6})_cifar": _cifar_nf_resnet,
}

RELATED_MODELS: tuple[str, ...] = (
    *(f"highway{depth}" for depth in (10, 20, 50, 100)),
    "highway10_conv16",
    "highway10_conv32",
    "densenet40_k12_cifar",
    *(f"densenet_bc{name}_cifar" for name in ("100_k12", "250_k24", "190_k40")),
    *(f"densenet{depth}" for depth in (121, 161, 169, 201)),
    *(f"nf_resnet{depth}_cifar" for depth in (20, 56, 110, 164)),
    *(f"nf_resnet{depth}" for depth in NF_UNITS),
)


def is_related(name: str) -> bool:
    """Whether a name has the form of a related network's.

    >>> is_related("densenet121"), is_related("resnet50")
    (True, False)
    """
    return any(re.fullmatch(pattern, name) for pattern in RELATED_FAMILIES)


def related_spec(name: str, **options: Any) -> RelatedSpec:
    """The declaration of the network `name`, with options of its spec in place of the name's own.

    Raises:  UsageError: if the name or an option is unknown, or the depth illegal.

    >>> related_spec("densenet_bc100_k12_cifar").depth
    100
    """
    for pattern, family in RELATED_FAMILIES.items():
        match = re.fullmatch(pattern, name)
        if match:
            spec = family(*match.groups())
            known = [field.name for field in dataclasses.fields(spec)]
            for option in options:
                if option not in known:
                    raise UsageError(
                        f"option {option!r}: unknown to {name}; nearest: {', '.join(nearest(option, known))}"
                    )
            return dataclasses.replace(spec, **options)
    raise UsageError(f"model {name!r}: unknown; nearest: {', '.join(nearest(name, RELATED_MODELS))}")
