"""Pre-activation ResNets from Torch7 files (`.t7`), the form in which their authors released ResNet-200.

The reader is torchfile (the extra `torch7`), which executes nothing: a Lua function in a file stays bytes. What it
reads is a tree of layers, walked here in the order in which Torch7 calls them.
"""

import importlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from verydeep.errors import UsageError, first_line
from verydeep.models.resnet import ResNet
from verydeep.models.spec import ResNetSpec
from verydeep.nn.unit import UNITS

# layers without weights that our networks have at the same places
_PASSED = ("ReLU", "Identity", "CAddTable", "SpatialAveragePooling", "View", "Reshape", "SpatialMaxPooling")
_READING = (OSError, EOFError, ValueError, TypeError, LookupError, OverflowError, RecursionError, MemoryError)


@dataclass
class _Unit:
    """A residual unit as a file has it: norms and convolutions of the branch in turn, and what is beside it."""

    shared: list[Any] = field(default_factory=list)
    branch: list[Any] = field(default_factory=list)
    shortcut: list[Any] = field(default_factory=list)

    def convs(self) -> list[Any]:
        return [layer for layer in self.branch if _is(layer, "SpatialConvolution")]

    def stride(self) -> int:
        return max(int(_get(conv, "dW")) for conv in self.convs())


def import_torch7(path: str | Path) -> ResNet:
    """Our network with the weights of a pre-activation ResNet in a Torch7 file, in eval mode.

    Read are the layouts of the authors' code for CIFAR and of fb.resnet.torch's `preresnet` for ImageNet, ResNet-200
    among them, with projections (option B); where the stride is, the file says.

    Raises:  UsageError: if torchfile is not installed, the file cannot be read, or its network is another.
    Source:  He et al. 2016, released code (resnet-pre-act.lua); fb.resnet.torch
    """
    root = _read(Path(path))
    try:
        return _network(root)
    except UsageError as error:
        raise UsageError(f"torch7 {path}: {error}") from None
    except (AttributeError, TypeError, ValueError, LookupError, RecursionError) as error:
        raise UsageError(f"torch7 {path}: is no network as Torch7 writes them ({type(error).__name__})") from error


def _read(path: Path) -> Any:
    try:
        torchfile = importlib.import_module("torchfile")
    except ImportError:
        raise UsageError(
            f"torch7 {path}: is read by torchfile, which is not installed; pip install torchfile"
        ) from None
    try:
        return torchfile.load(str(path))
    except (*_READING, struct.error, torchfile.T7ReaderException) as error:
        raise UsageError(f"torch7 {path}: cannot be read ({first_line(error)})") from None


def _network(root: Any) -> ResNet:
    layers = list(_flat(root))
    places = [i for i, layer in enumerate(layers) if isinstance(layer, _Unit)]
    if not places:
        raise UsageError("no residual unit (a ConcatTable of branch and shortcut) in it")
    before, units, after = layers[: places[0]], [layers[i] for i in places], layers[places[-1] + 1 :]
    spec = _spec(before, units, after)
    with torch.device("meta"):
        model = ResNet(spec)
    _fill(model, _tensors(before, units, after, spec))
    model.to(memory_format=torch.channels_last)
    return model.eval()


def _get(layer: Any, name: str) -> Any:
    return layer[name]  # torchfile's own look-up, None where there is none


def _name(layer: Any) -> str:
    """`SpatialConvolution` of `cudnn.SpatialConvolution`."""
    typename = layer.torch_typename() if hasattr(type(layer), "torch_typename") else type(layer).__name__.encode()
    return typename.decode(errors="replace").rpartition(".")[2]


def _is(layer: Any, name: str) -> bool:
    return not isinstance(layer, _Unit) and _name(layer) == name


def _flat(layer: Any) -> Iterator[Any]:
    """The layers in the order of their calls, each residual unit as one `_Unit`; those without weights left out."""
    if _is(layer, "Sequential"):
        children = list(_get(layer, "modules"))
        pairs = [i for i, child in enumerate(children) if _is(child, "ConcatTable")]
        if not pairs:
            for child in children:
                yield from _flat(child)
            return
        shared = [one for child in children[: pairs[0]] for one in _flat(child)]
        branches = [list(_flat(child)) for child in _get(children[pairs[0]], "modules")]
        rest = [_name(child) for child in children[pairs[0] + 1 :]]
        if len(branches) != 2 or rest != ["CAddTable"]:
            raise UsageError("a residual unit must be a branch and a shortcut, then their sum alone")
        beside = set(_names(_get(children[pairs[0]], "modules")[1])) - {"Identity", "SpatialConvolution"}
        if beside:
            raise UsageError(f"a shortcut with {', '.join(sorted(beside))}; must be a projection alone")
        yield _Unit(shared, *branches)
    elif _name(layer) == "SpatialMaxPooling" or _weighted(layer):
        yield layer
    elif _name(layer) not in _PASSED:
        raise UsageError(f"has a layer {_name(layer)}, which verydeep's ResNets have not")


def _names(layer: Any) -> Iterator[str]:
    """The names of a layer, or of those in it."""
    if _is(layer, "Sequential"):
        for child in _get(layer, "modules"):
            yield from _names(child)
    else:
        yield _name(layer)


def _weighted(layer: Any) -> bool:
    return _name(layer) in ("SpatialConvolution", "SpatialBatchNormalization", "Linear")


def _spec(before: list[Any], units: list[_Unit], after: list[Any]) -> ResNetSpec:
    """The declaration of the network; Torch7 says where the strides are.

    Raises:  UsageError: if stem or head are others than ours.
    """
    names = [_name(layer) for layer in before]
    conv, norm, pool = "SpatialConvolution", "SpatialBatchNormalization", "SpatialMaxPooling"
    stems = {
        (conv, norm, pool): "act_first",
        (conv, pool): "pool_first",
        (conv,): "act_first",
        (conv, norm): "act_first",
    }
    if tuple(names) not in stems or [_name(layer) for layer in after] != [norm, "Linear"]:
        found = ", ".join([*names, "units", *map(_name, after)])
        raise UsageError(f"its layers are {found}; a pre-activation ResNet ends in norm and linear layer")
    _check_places(units, stems[tuple(names)], stem_has_norm=norm in names)
    counts: list[int] = []
    for unit in units:
        if not counts or unit.stride() > 1:
            counts.append(0)
        counts[-1] += 1
    convs = units[0].convs()
    kind = {1: "one_layer", 2: "basic", 3: "bottleneck"}.get(len(convs), "")
    if kind == "" or any(len(unit.convs()) != len(convs) for unit in units):
        raise UsageError(f"units of {len(convs)} convolutions; all must have 1, 2 or 3")
    width, out, expansion = len(_weight(before[0])), len(_weight(convs[-1])), UNITS[kind].expansion
    strided = next((unit for unit in units if unit.stride() > 1), None)
    on_first = strided is None or int(_get(strided.convs()[0], "dW")) > 1
    return ResNetSpec(
        stage_units=tuple(counts),
        width=width,
        widen=out / (expansion * width),
        bottleneck_widen=len(_weight(convs[0])) * expansion / out if kind == "bottleneck" else 1.0,
        in_channels=_weight(before[0]).shape[1],
        num_classes=len(_array(_get(after[-1], "weight"))),
        unit=kind,
        order="full_preact",
        stem="imagenet" if pool in names else "cifar",
        stem_order=stems[tuple(names)],
        option="B",
        stride_on="1x1" if on_first or kind != "bottleneck" else "3x3",
    )


def _check_places(units: list[_Unit], stem_order: str, *, stem_has_norm: bool) -> None:
    """Refuse a unit whose first norm is not where ours has it: before the split where the dimension changes.

    Raises:  UsageError: naming the unit.
    """
    for index, unit in enumerate(units):
        begins = _is([*unit.shared, *unit.branch][0], "SpatialBatchNormalization")
        if index == 0 and stem_has_norm:
            fits = not begins
        elif index == 0 and stem_order == "act_first":
            fits = begins and bool(unit.shared)  # ours applies it in the stem, so for both
        else:
            fits = begins and bool(unit.shared) == bool(unit.shortcut)
        if not fits:
            raise UsageError(f"unit {index}: its first norm is not where a pre-activation ResNet has it")


def _tensors(before: list[Any], units: list[_Unit], after: list[Any], spec: ResNetSpec) -> dict[str, Tensor]:
    """The file's tensors under our names."""
    tensors = _convolution(before[0], "stem.conv")
    stem_norms = [layer for layer in before if _is(layer, "SpatialBatchNormalization")]
    prefixes = [f"stages.{s}.{i}" for s, count in enumerate(spec.stage_units) for i in range(count)]
    for index, (prefix, unit) in enumerate(zip(prefixes, units, strict=True)):
        layers, convs = [*unit.shared, *unit.branch], 0
        first = "stem.act.norm" if index == 0 and spec.stem_order == "act_first" else f"{prefix}.preact.norm"
        if index == 0 and stem_norms:
            tensors |= _norm(stem_norms[0], first)
        for layer in layers:
            if _is(layer, "SpatialConvolution"):
                convs += 1
                tensors |= _convolution(layer, f"{prefix}.branch.conv{convs}")
            else:
                tensors |= _norm(layer, first if convs == 0 else f"{prefix}.branch.act{convs}.norm")
        for layer in unit.shortcut:
            tensors |= _convolution(layer, f"{prefix}.shortcut.conv")
    tensors |= _norm(after[0], "head.act.norm")
    return tensors | {f"head.linear.{name}": _array(_get(after[1], name)) for name in ("weight", "bias")}


def _convolution(layer: Any, name: str) -> dict[str, Tensor]:
    bias = _get(layer, "bias")
    given = {} if bias is None or not _array(bias).any() else {f"{name}.bias": _array(bias)}
    return {f"{name}.weight": _weight(layer)} | given


def _weight(conv: Any) -> Tensor:
    """(C_out, C_in, k, k); older files keep it as a matrix."""
    height, width = int(_get(conv, "kH")), int(_get(conv, "kW"))
    return _array(_get(conv, "weight")).reshape(int(_get(conv, "nOutputPlane")), -1, height, width)


def _norm(layer: Any, name: str) -> dict[str, Tensor]:
    values = {key: _array(_get(layer, key)) for key in ("weight", "bias", "running_mean", "running_var")}
    eps = _get(layer, "eps")
    if eps is not None and abs(eps - 1e-5) > 1e-12:
        raise UsageError(f"eps {eps} of a norm; must be 1e-05")
    counter = {f"{name}.num_batches_tracked": torch.zeros((), dtype=torch.int64)}
    return {f"{name}.{key}": value for key, value in values.items()} | counter


def _array(value: Any) -> Tensor:
    """A tensor of the file, copied; one that says to be larger than its storage is never touched."""
    if not isinstance(value, np.ndarray) or value.size == 0:
        raise UsageError("a layer without its weights; the file was saved without them")
    storage: Any = value.base
    while storage is not None and not isinstance(storage, np.ndarray):
        storage = getattr(storage, "base", None)
    reach = sum((size - 1) * step for size, step in zip(value.shape, value.strides, strict=True)) + value.itemsize
    if isinstance(storage, np.ndarray) and (min(value.strides, default=0) < 0 or reach > storage.nbytes):
        raise UsageError("a tensor reaches beyond its storage; the file is damaged")
    return torch.from_numpy(np.array(value))


def _fill(model: ResNet, tensors: dict[str, Tensor]) -> None:
    expected = model.state_dict()
    for name in [*expected, *tensors]:
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape:
            found = tuple(tensors[name].shape) if name in tensors else "missing"
            wanted = tuple(expected[name].shape) if name in expected else "none"
            raise UsageError(f"holds another network; {name} is {found}, must be {wanted}")
    model.load_state_dict(tensors, assign=True)
