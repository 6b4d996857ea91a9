"""`SignalReader`: the observer that reduces each signal to scalars when it has just been computed.

`reading` runs passes with it. What it computes, torch does not record, and it keeps no signal but the newest head's.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verydeep.analysis import quantity
from verydeep.analysis.graph import Graph, Node
from verydeep.analysis.operation import NONNEGATIVE, SOFTMAX, is_linear
from verydeep.analysis.record import Observer

READ = frozenset(
    ["input", "weight", "norm", "act", "add", "scale", "gate", "dropout", "pool", "attention", "other", "loss"]
)
BOUNDS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "hardsigmoid": (0.0, 1.0)}
# Within 2 % of its range from a bound a sigmoid's slope is below 0.02, a twelfth of its largest; tanh's alike.
MARGIN = 0.02
SAMPLE = 64  # queries and keys of one head that are looked at


class SignalReader(Observer):
    """Values by node and gradients by node, as 0-d tensors until `floats` is asked for."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[int, dict[str, Tensor]] = {}
        self.gradients: dict[int, Tensor] = {}
        self.head_input: Tensor | None = None
        self._axes: dict[int, int | None] = {}
        self._operands: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def before(self, name: str, operands: Sequence[Any]) -> None:
        tensors = [x for x in operands if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
        self._operands = [_operand(x.detach()) for x in tensors[:2]] if len(tensors) > 1 else []

    def after(self, node: Node, operands: Sequence[Any], options: dict[str, Any], results: Sequence[Tensor]) -> None:
        result = results[0]
        if node.kind not in READ or not result.is_floating_point() or not result.numel():
            self._axes[node.index] = None
            return
        self._axes[node.index] = self._axis(node)
        with torch.no_grad():
            self.values[node.index] = self._read(node, operands, options, result.detach())
        if node.kind == "weight" and isinstance(operands[0] if operands else None, Tensor):
            self.head_input = next(
                (x.detach() for x in operands if isinstance(x, Tensor) and x.is_floating_point()), None
            )
        if result.requires_grad and node.kind != "loss":
            self.watch(node.index, result)

    def watch(self, index: int, tensor: Tensor) -> None:
        """Read the gradient that comes back to a tensor."""

        def read(gradient: Tensor) -> None:
            with torch.no_grad():
                self.gradients[index] = quantity.norm(gradient.detach())

        tensor.register_hook(read)

    def floats(self) -> tuple[dict[int, dict[str, float]], dict[int, float]]:
        """All values and gradients as numbers: the one place that waits for the device."""
        flat = [value.double() for values in self.values.values() for value in values.values()]
        numbers = iter(_numbers(flat + list(self.gradients.values())))
        values = {index: {key: next(numbers) for key in values} for index, values in self.values.items()}
        return values, dict(zip(self.gradients, numbers, strict=True))

    def _axis(self, node: Node) -> int | None:
        """The channels' axis, where it is known from the operations before."""
        if node.kind == "weight":
            return 1 if "conv" in node.name else -1
        return self._axes.get(node.inputs[0])

    def _read(self, node: Node, operands: Sequence[Any], options: dict[str, Any], x: Tensor) -> dict[str, Tensor]:
        axis = self._axes[node.index] or (1 if x.dim() in (2, 4, 5) else -1)
        values = {"mean_square": quantity.mean_square(x)}
        if not torch.isfinite(values["mean_square"]):
            values["finite"] = torch.isfinite(x).all()
        if node.kind in ("weight", "input", "add") and x.dim() > 1 and x.shape[axis] > 1:
            values["channel_variance"] = quantity.channel_variance(x, axis=axis, square=values["mean_square"])
        if node.kind == "act":
            values |= _activation(node, operands, options, x, axis)
        elif node.kind == "add":
            values |= _sum(self._operands, x, values["mean_square"])
        elif node.name == "scaled_dot_product_attention":
            values["certain"] = _attention(operands, options)
        elif node.name in ("batch_norm", "native_batch_norm", "instance_norm", "group_norm", "layer_norm"):
            values |= _norm(node, operands, options)
        if node.kind == "loss" or node.name in SOFTMAX:
            values |= _loss(node, operands, options)
        return values


def _operand(x: Tensor) -> dict[str, Tensor]:
    least, most = torch.aminmax(x[:1] if x.dim() else x)  # one sample says whether a branch is never negative
    return {"square": quantity.mean_square(x), "least": least, "most": most}


def _numbers(values: list[Tensor]) -> list[float]:
    """0-d tensors as numbers, one transfer from each device."""
    numbers = [0.0] * len(values)
    for device in {value.device for value in values}:
        places = [place for place, value in enumerate(values) if value.device == device]
        for place, number in zip(places, torch.stack([values[place] for place in places]).tolist(), strict=True):
            numbers[place] = number
    return numbers


def _activation(
    node: Node, operands: Sequence[Any], options: dict[str, Any], y: Tensor, axis: int
) -> dict[str, Tensor]:
    name = node.name.strip("_")
    bounds = BOUNDS.get(name)
    if name == "hardtanh":  # nn.ReLU6 too
        least = options.get("min_val", operands[1] if len(operands) > 1 else -1.0)
        bounds = (least, options.get("max_val", operands[2] if len(operands) > 2 else 1.0))
    if node.name in NONNEGATIVE or (name == "hardtanh" and bounds is not None and bounds[0] == 0):
        values = {"dead": quantity.dead_share(y)}
        if y.dim() > 1:
            per_channel = torch.tensor(y.numel() / y.shape[axis])
            values |= {"dead_channels": quantity.dead_channel_share(y, axis=axis), "per_channel": per_channel}
        return values
    if bounds is not None:
        return {"saturated": quantity.saturated_share(y, low=bounds[0], high=bounds[1], margin=MARGIN)}
    if node.name in ("softmax", "_softmax") and y.shape[-1] > 2:
        return {"certain": (y.amax(-1) > 0.9).float().mean()}
    return {}


def _sum(operands: list[dict[str, Tensor]], x: Tensor, square: Tensor) -> dict[str, Tensor]:
    values = {"truncated": quantity.truncated_share(x, square=square)}
    for place, facts in enumerate(operands):
        values |= {f"{key}{place}": value for key, value in facts.items()}
    return values


def _attention(operands: Sequence[Any], options: dict[str, Any]) -> Tensor:
    """Share of sampled queries that look at one key alone."""
    q, k = (x.detach()[:1].flatten(0, -3)[:1, :SAMPLE].float() for x in operands[:2])
    scale = options.get("scale") or q.shape[-1] ** -0.5
    return quantity.certain_share(q @ k.transpose(-1, -2) * scale)


def _norm(node: Node, operands: Sequence[Any], options: dict[str, Any]) -> dict[str, Tensor]:
    """Values that each mean and variance is of; of batch norm also how far running statistics are from the batch's."""
    x = operands[0].detach() if operands else options["input"].detach()
    if "batch_norm" in node.name:
        names = ("input", "running_mean", "running_var", "weight", "bias", "training")
        given = dict(zip(names, operands, strict=False)) | options
        values = {
            "training": torch.tensor(float(bool(given.get("training")))),
            "values": torch.tensor(x.numel() / x.shape[1]),
        }
        if not given.get("training") and x.numel() / x.shape[1] > 1:
            values |= _mismatch(x, given["running_mean"], given["running_var"])
        return values
    if node.name == "group_norm":
        groups = options.get("num_groups", operands[1] if len(operands) > 1 else 1)
        return {"values": torch.tensor(x[0].numel() / groups)}
    if node.name == "layer_norm":
        shape = options.get("normalized_shape", operands[1] if len(operands) > 1 else x.shape[-1:])
        return {"values": torch.tensor(float(torch.Size(shape).numel()))}
    return {"values": torch.tensor(float(x[0, 0].numel()))}


def _mismatch(x: Tensor, mean: Tensor, variance: Tensor) -> dict[str, Tensor]:
    """Squared shift of the batch's mean in running standard deviations, and log ratio of the variances, rms."""
    dims = [i for i in range(x.dim()) if i != 1]
    batch_variance, batch_mean = torch.var_mean(x.float(), dims, correction=0)
    shift = (batch_mean - mean).square() / (variance + 1e-5)
    ratio = torch.log((batch_variance + 1e-5) / (variance + 1e-5))
    return {"shift": shift.mean().sqrt(), "log_ratio": ratio.square().mean().sqrt()}


def _loss(node: Node, operands: Sequence[Any], options: dict[str, Any]) -> dict[str, Tensor]:
    """Whether what a (log-)softmax or a loss takes are probabilities already; whether shapes would be broadcast."""
    x = options.get("input", operands[0] if operands else None)
    target = options.get("target", operands[1] if len(operands) > 1 else None)
    if not isinstance(x, Tensor) or x.dim() == 0 or not x.is_floating_point():
        return {}
    x = x.detach().float()
    values = {"least": x.min(), "most": x.max()}
    if x.dim() > 1:
        values["row_error"] = (x.sum(1 if node.kind == "loss" else -1) - 1).abs().max()
    if isinstance(target, Tensor) and target.is_floating_point() and target.numel():
        values |= {"target_least": target.min(), "target_most": target.max()}
        values["broadcast"] = torch.tensor(float(target.shape != x.shape))
    return values


def is_head(node: Node) -> bool:
    """Whether a node is a linear map with weights.

    >>> is_head(Node(1, "linear", "weight", "head", (0,), 0, 1))
    True
    """
    return node.kind == "weight" and is_linear(node.name)
