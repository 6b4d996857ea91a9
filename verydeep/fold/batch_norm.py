"""`fold_batch_norm`: at prediction a batch norm is a scale and a shift, which the convolution before it can take over.

Which norm follows which convolution is read from the traced computation, not from the order of modules.
"""

import copy
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from verydeep.errors import UsageError, first_line
from verydeep.fold.join import is_relu, join_convolutions, only_user
from verydeep.nn.fused import unwatched
from verydeep.nn.norm import GhostBatchNorm2d, SyncBatchNorm2d
from verydeep.nn.prediction import ScaleShift

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, GhostBatchNorm2d, SyncBatchNorm2d)
IDLE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Affine(NamedTuple):
    """A norm at prediction: y = scale_c x + shift_c, in float64."""

    scale: Tensor
    shift: Tensor


@torch.inference_mode(False)
def fold_batch_norm(model: nn.Module) -> fx.GraphModule:
    """The model at prediction, with each batch norm in the weights before it, or as one scale and shift with its ReLU.

    Convolutions take the ReLU and the addition that follow them, as one operation where no gradient is wanted
    (`torch.no_grad()`) on the CPU.

    w' = w gamma / sqrt(var + eps), b' = (b - mean) gamma / sqrt(var + eps) + beta for a norm that follows a
    convolution and is all that follows it. Other norms, those of a residual sum for one, become a ScaleShift.
    What has hooks stays as it is, and they fire.
    A fold whose weights would leave the range of their type (float16) is left undone: the norm stays as a ScaleShift.

    Args:    model: with running statistics; not changed. Fastest in channels_last, as `create_model` gives it
    Returns: a new module in eval mode, a graph of the computation without the class and methods of the model
    Raises:  UsageError: if the model's computation cannot be traced.
    Source:  the chapter, section 4 (prediction)

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    >>> sorted(type(module).__name__ for module in fold_batch_norm(model).children())
    ['JoinedConv2d']
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model {model!r}: must be a torch.nn.Module")
    folded = _trace(copy.deepcopy(model).eval())
    _drop_assertions(folded.graph)
    _drop_idle(folded)
    foldable = _convolutions_of_one_use(folded)
    for node, norm in list(_norms(folded)):
        before = node.all_input_nodes[0]
        convolution = foldable.get(before) if len(before.users) == 1 else None
        if convolution is None or not _fold_into(convolution, norm):
            _make_scale_shift(folded, node, norm)
            continue
        node.replace_all_uses_with(before)
        folded.graph.erase_node(node)
    for node in reversed(list(folded.graph.nodes)):
        if node.op == "get_attr" and not node.users:
            folded.graph.erase_node(node)
    join_convolutions(folded, foldable)
    folded.delete_all_unused_submodules()
    folded.recompile()
    return folded


class _Tracer(fx.Tracer):
    """Keeps the batch norms that can be folded whole, and tells `x += y` from `x = x + y`."""

    def is_leaf_module(self, module: nn.Module, qualified_name: str) -> bool:
        return type(module) in NORMS or super().is_leaf_module(module, qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)


class _Proxy(fx.Proxy):
    """fx's own takes `x += y` for `x = x + y`, though others may hold x."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._in_place(operator.itruediv, other)

    def _in_place(self, operation: Callable[[Any, Any], Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})


def _trace(model: nn.Module) -> fx.GraphModule:
    try:
        return fx.GraphModule(model, _Tracer().trace(model), type(model).__name__)
    except Exception as error:  # whatever a user's forward raises on symbols
        raise UsageError(
            f"model {type(model).__name__}: cannot be folded, its computation cannot be traced ({first_line(error)}); "
            "a forward without branches on values can"
        ) from error


def _drop_assertions(graph: fx.Graph) -> None:
    """Take out assertions, on shapes as timm's norms make them, and what only they ask for."""
    for node in reversed(graph.nodes):
        is_assertion = node.target is torch._assert
        if is_assertion or (not node.users and node.target in (operator.eq, getattr)):
            graph.erase_node(node)


def _drop_idle(folded: fx.GraphModule) -> None:
    """Take out the modules that give back what they are given, at prediction."""
    for node in folded.graph.nodes:
        if node.op != "call_module":
            continue
        module = folded.get_submodule(str(node.target))
        if type(module) in IDLE and unwatched(module):
            node.replace_all_uses_with(node.args[0])
            folded.graph.erase_node(node)


def _norms(folded: fx.GraphModule) -> Iterator[tuple[fx.Node, Affine]]:
    """The nodes that are batch norms with running statistics, modules or `F.batch_norm`."""
    for node in folded.graph.nodes:
        if not node.args:  # all by name
            continue
        if node.op == "call_module":
            norm: Any = folded.get_submodule(str(node.target))
            if type(norm) in NORMS and norm.running_mean is not None and unwatched(norm):
                yield node, _affine(norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps)
        elif node.op == "call_function" and node.target is F.batch_norm:
            arguments = _bound(node)
            tensors = [arguments[name] for name in ("running_mean", "running_var", "weight", "bias")]
            known = all(value is None or _is_attribute(value) for value in tensors) and tensors[0] is not None
            if known and arguments["training"] is False:
                values = [None if tensor is None else _attribute(folded, tensor) for tensor in tensors]
                yield node, _affine(*values, eps=arguments["eps"])


def _bound(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call of `F.batch_norm` by name."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    defaults = {"weight": None, "bias": None, "training": False, "momentum": 0.1, "eps": 1e-5}
    return defaults | dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _is_attribute(value: Any) -> bool:
    return isinstance(value, fx.Node) and value.op == "get_attr"


def _attribute(folded: fx.GraphModule, node: fx.Node) -> Tensor:
    return operator.attrgetter(str(node.target))(folded)


def _affine(mean: Any, variance: Any, weight: Any, bias: Any, *, eps: float) -> Affine:
    scale = torch.rsqrt(variance.double() + eps)
    if weight is not None:
        scale = scale * weight.detach().double()
    shift = -mean.double() * scale
    return Affine(scale, shift if bias is None else shift + bias.detach().double())


def _convolutions_of_one_use(folded: fx.GraphModule) -> dict[fx.Node, nn.Conv2d]:
    """The calls of convolutions whose weights serve nowhere else."""
    uses: Counter[int] = Counter()
    convolutions: dict[fx.Node, nn.Conv2d] = {}
    for node in folded.graph.nodes:
        if node.op == "call_module":
            layer: Any = folded.get_submodule(str(node.target))
            uses.update(id(parameter) for parameter in layer.parameters())
            if type(layer) in CONVOLUTIONS and unwatched(layer):
                convolutions[node] = layer
        elif node.op == "get_attr":
            uses[id(_attribute(folded, node))] += 1
    return {node: convolution for node, convolution in convolutions.items() if uses[id(convolution.weight)] == 1}


def _fold_into(convolution: nn.Conv2d, norm: Affine) -> bool:
    """Give the norm to the convolution before it; whether its weights stay finite in their type."""
    old = convolution.weight
    weight = old.detach().double() * norm.scale.view(-1, *[1] * (old.dim() - 1))
    bias = norm.shift if convolution.bias is None else norm.shift + norm.scale * convolution.bias.detach().double()
    weight, bias = weight.to(old.dtype), bias.to(old.dtype)
    if not (torch.isfinite(weight).all() and torch.isfinite(bias).all()):
        return False
    convolution.weight = nn.Parameter(weight, old.requires_grad)
    convolution.bias = nn.Parameter(bias, old.requires_grad)
    return True


def _make_scale_shift(folded: fx.GraphModule, node: fx.Node, norm: Affine) -> None:
    """Put a ScaleShift in the place of a norm, with the ReLU that alone follows it."""
    user = only_user(node)
    relu = user if user is not None and is_relu(folded, user) else None
    dtype = next((p.dtype for p in folded.parameters() if p.is_floating_point()), torch.float32)
    module = ScaleShift(norm.scale.to(dtype), norm.shift.to(dtype), relu=relu is not None)
    name = f"scale_shift_{node.name}"
    folded.add_submodule(name, module)
    with folded.graph.inserting_before(node):
        replacement = folded.graph.call_module(name, (node.args[0],))
    for old in (node, *([] if relu is None else [relu])):
        old.replace_all_uses_with(replacement)
    for old in (*([] if relu is None else [relu]), node):
        folded.graph.erase_node(old)
