"""Weights of torchvision's and timm's ResNets in our networks, and ours in theirs: `import_weights`, `export_weights`.

Tensors are renamed, never changed, so the logits are the same. What is not the same network is refused by name.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.errors import UsageError, nearest
from verydeep.models.catalogue import OPTIONS
from verydeep.models.check import fault_of
from verydeep.models.layout import LAYOUTS, Layout, State, declared, layout_of
from verydeep.models.resnet import ResNet
from verydeep.models.spec import ResNetSpec
from verydeep.nn.mode import evaluating

_WRAPPERS = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile


def import_weights(source: Mapping[str, Tensor] | nn.Module, **options: Any) -> ResNet:
    """Our network with the weights of one of torchvision's ResNets or timm's `resnet*` or `resnetv2_*`, in eval mode.

    Depth, width, classes and kind of unit are read from the shapes. Where a bottleneck strides they cannot say: it is
    on the 3x3, as in torchvision and timm, unless `stride_on="1x1"`. A module says it itself, and is called once to see
    that it computes the same.

    Args:    source: its state dict, or the module itself; neither is changed nor shared
             options: fields of ResNetSpec that the network must have, such as order="original", num_classes=1000
    Raises:  UsageError: if the weights are of a network that verydeep does not build, or not of the one that the
             options say; naming the first difference.

    >>> import torchvision
    >>> theirs = torchvision.models.resnet18(num_classes=10).eval()
    >>> ours = import_weights(theirs)
    >>> images = torch.randn(1, 3, 64, 64)
    >>> torch.allclose(ours(images), theirs(images), atol=1e-4)
    True
    """
    if isinstance(source, nn.Module):
        options = _strides_of(source) | options
    spec, tensors = translate(source.state_dict() if isinstance(source, nn.Module) else source, **options)
    with torch.device("meta"):
        model = ResNet(spec)
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    model.to(memory_format=torch.channels_last)
    if isinstance(source, nn.Module):
        _check_same(source, model)
    return model.eval()


def export_weights(model: nn.Module) -> dict[str, Tensor]:
    """The state dict of one of our networks as other libraries name it, to be loaded with `load_state_dict`.

    Order `original` gives the names of torchvision's ResNets and timm's `resnet*`; order `full_preact` with stem_order
    `pool_first` those of timm's `resnetv2_*`.

    Raises:  UsageError: if they have no such network, naming the option at fault.

    >>> from verydeep import create_model
    >>> list(export_weights(create_model("resnet18")))[0]
    'conv1.weight'
    """
    if type(model) is not ResNet:
        raise UsageError(f"model {type(model).__name__}: torchvision and timm have only our ResNet")
    spec = model.spec
    layout = next((known for known in LAYOUTS if known.order == spec.order), None)
    if layout is None:
        raise UsageError(f"order {spec.order}: torchvision and timm have only original and full_preact")
    wanted = dict(stem="imagenet", stem_order=layout.stem_order, option="B", shortcut="identity", norm="batch")
    if spec.unit == "bottleneck":
        wanted["stride_on"] = "3x3"
    for name, value in wanted.items():
        if getattr(spec, name) != value:
            raise UsageError(f"{name} {getattr(spec, name)}: {layout.owner} have {name} {value} alone")
    if spec.unit not in ("basic", "bottleneck") or spec.scale not in ("none", "zero_init"):
        name = "scale" if spec.unit in ("basic", "bottleneck") else "unit"
        raise UsageError(f"{name} {getattr(spec, name)}: {layout.owner} have none such")
    state = {layout.name(name): tensor.detach() for name, tensor in model.state_dict().items()}
    if layout.head_is_conv:
        state[f"{layout.head}.weight"] = state[f"{layout.head}.weight"][:, :, None, None]
    return state


def translate(state: Mapping[str, Tensor], **options: Any) -> tuple[ResNetSpec, dict[str, Tensor]]:
    """The declaration of the network that a foreign state dict is of, and its tensors under our names.

    Args:    options: as of `import_weights`
    Raises:  UsageError: as `import_weights`.
    """
    state = without_wrappers(state)
    layout = layout_of(state)
    spec = _spec(declared(state, layout), options)
    return spec, _renamed(state, layout, spec)


def without_wrappers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict without the prefixes of wrappers, in any order, where all names have them.

    Raises:  UsageError: if a value is no tensor, naming it.

    >>> list(without_wrappers({"module._orig_mod.fc.bias": torch.zeros(1)}))
    ['fc.bias']
    """
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            raise UsageError(f"weights: {name!r} holds {type(tensor).__name__}; a state dict holds tensors alone")
    names = list(state)
    while names and (prefix := next((p for p in _WRAPPERS if all(name.startswith(p) for name in names)), None)):
        names = [name.removeprefix(prefix) for name in names]
    return dict(zip(names, state.values(), strict=True))


def _spec(found: dict[str, Any], options: Mapping[str, Any]) -> ResNetSpec:
    """The spec of what was found, with options that must agree with it."""
    for name in options:
        if name not in OPTIONS:
            raise UsageError(f"option {name!r}: unknown; nearest: {', '.join(nearest(name, OPTIONS))}")
    stride_on = options.get("stride_on", "3x3") if found["unit"] == "bottleneck" else "1x1"
    spec = ResNetSpec(**found, stride_on=stride_on)
    asked = ResNetSpec(**spec.to_dict() | dict(options))
    for name in options:
        if getattr(asked, name) != getattr(spec, name):
            raise UsageError(f"{name} {getattr(asked, name)}: the weights are of a network with {getattr(spec, name)}")
    return spec


def _renamed(state: State, layout: Layout, spec: ResNetSpec) -> dict[str, Tensor]:
    """The tensors under our names, every one of them and no other, in our shapes."""
    with torch.device("meta"):
        network = ResNet(spec)
    expected, parameters = network.state_dict(), {name for name, _ in network.named_parameters()}
    left, tensors = dict(state), {}
    for name, own in expected.items():
        theirs = layout.name(name)
        if theirs not in left and theirs.endswith("num_batches_tracked"):
            left[theirs] = torch.zeros((), dtype=torch.int64)  # files of before torch 0.4.1 have none
        if theirs not in left:
            raise UsageError(f"weights: {theirs} is missing; a network with these shapes has it")
        tensor = left.pop(theirs)
        if layout.head_is_conv and theirs == f"{layout.head}.weight":
            tensor = tensor.flatten(1)
        if tensor.shape != own.shape:
            raise UsageError(
                f"weights: {theirs} is {tuple(tensor.shape)}, must be {tuple(own.shape)} beside the others"
            )
        tensors[name] = tensor
    if left:
        raise UsageError(f"weights: {next(iter(left))} has no place in {layout.owner} as verydeep builds them")
    for name, tensor in tensors.items():
        fault = fault_of(tensor, expected[name], is_parameter=name in parameters)
        if fault is not None:
            raise UsageError(f"weights: {layout.name(name)} {fault}")
    return tensors


def _strides_of(module: nn.Module) -> dict[str, Any]:
    """Which convolution of a bottleneck has the stride, from the first unit of the second stage."""
    modules = dict(module.named_modules())
    for prefix in ("layer2.0.", "stages.1.blocks.0."):
        first, third = modules.get(f"{prefix}conv1"), modules.get(f"{prefix}conv3")
        if isinstance(first, nn.Conv2d) and third is not None:
            return {"stride_on": "1x1" if first.stride != (1, 1) else "3x3"}
    return {}


@torch.no_grad()
def _check_same(theirs: nn.Module, ours: ResNet) -> None:
    """Refuse a module that computes something else with the same tensors, naming the layer where that can be seen."""
    layout = layout_of(theirs.state_dict())
    modules = dict(theirs.named_modules())
    for name, own in ours.named_modules():
        other = modules.get(layout.name(f"{name}.").rstrip("."))
        for setting in ("stride", "padding", "dilation", "groups", "eps"):
            if isinstance(own, nn.Conv2d | nn.BatchNorm2d) and hasattr(own, setting):
                value, known = getattr(other, setting, None), getattr(own, setting)
                if value != known:
                    raise UsageError(f"model: {setting} {value} of {layout.name(f'{name}.')[:-1]}; must be {known}")
    weight = ours.get_parameter("stem.conv.weight")
    if weight.is_meta:
        return
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, weight.shape[1], 64, 64, generator=generator).to(weight)
    with evaluating(theirs), evaluating(ours):
        output, expected = ours(images), theirs(images)
    tolerance = torch.finfo(weight.dtype).eps ** 0.5 * expected.abs().max().item()
    if output.shape != expected.shape or not torch.allclose(output, expected, rtol=0, atol=tolerance, equal_nan=True):
        raise UsageError(
            f"model {type(theirs).__name__}: with the same weights it computes other logits than ours: another "
            "activation, pooling or kind of convolution"
        )
