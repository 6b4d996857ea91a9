"""`read`: all that the rules look at, measured in a few passes over one batch. The model is as before afterwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.analysis import quantity
from verydeep.analysis.addition import Addition, find_additions
from verydeep.analysis.batch_norm import BATCH_NORMS
from verydeep.analysis.call import Inputs, Loss, is_cross_entropy, map_tensors, tensors
from verydeep.analysis.graph import Graph
from verydeep.analysis.one_pass import Gradient, Pass, input_gradient, run_pass, same_draws
from verydeep.analysis.trial import Trial, try_steps

NEAR = 1e-3  # distance of the near inputs over the inputs' own size
TINY, MOVED = 1e-3, 0.1  # scales that branches begin with (CaiT 1e-5, ConvNeXt 1e-6), and where they get to
MOST_ROUNDS = 3  # zero head, zero scales behind it, and what they scale


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Args:    matrix: whether it has two or more long dimensions
             norm: of its value
             equal_rows: whether all output units have the same weights, the fan-in being above 1
             finite: all values
             gradient: None if no gradient reached it
    """

    name: str
    shape: tuple[int, ...]
    trainable: bool
    matrix: bool
    norm: float
    equal_rows: bool
    finite: bool
    gradient: Gradient | None


@dataclass(frozen=True)
class BatchNorm:
    """A batch norm: its mode, momentum, steps that it has seen, and whether its statistics are still 0 and 1."""

    name: str
    training: bool
    momentum: float | None
    num_tracked: int
    fresh: bool


@dataclass(frozen=True)
class InputFacts:
    """An input of floating point: moments, extremes, samples' differences, spread of its features' deviations."""

    name: str
    mean: float
    std: float
    least: float
    most: float
    finite: bool
    variation: float
    spread: float


@dataclass
class Reading:
    """What the rules look at.

    Args:    graph, values, gradients: as in `Pass`; gradients after unlocking
             additions: the residual additions, in running order
             trunk: nodes of kind weight that every path to the output passes
             parameters: by name
             blocked: weights without gradient also after what was zero has been moved
             rounds: how often zeros had to be moved before every weight had a gradient
             shatter: cosine of the input gradients at a distance of NEAR
             error, error_site: what was raised
    """

    graph: Graph
    values: dict[int, dict[str, float]]
    gradients: dict[int, float]
    additions: list[Addition]
    trunk: list[int]
    parameters: dict[str, Parameter]
    batch_norms: list[BatchNorm]
    inputs: list[InputFacts]
    training: bool
    loss: float | None
    labels: Any
    logits: Tensor | None
    cross_entropy: bool
    variations: dict[str, float]
    blocked: list[str] = field(default_factory=list)
    rounds: int = 0
    shatter: float | None = None
    trial: Trial | None = None
    error: Exception | None = None
    error_site: str = ""

    def value(self, node: int, key: str) -> float | None:
        """A quantity of a node; None if it was not read there."""
        return self.values.get(node, {}).get(key)


def read(
    model: nn.Module,
    inputs: Inputs,
    labels: Any,
    loss: Loss | None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 0,
) -> Reading:
    """Measure; the caller puts the model back (`unchanged`)."""
    norms = _batch_norms(model)
    for name in (norm.name for norm in norms if not norm.training and norm.fresh):
        model.get_submodule(name).train()  # judged as the batch would have it, not by statistics that were never taken
    for parameter in model.parameters():
        parameter.grad = None
    first = _pass(model, inputs, labels, loss)
    begun = [(p, p.detach().clone()) for p in model.parameters() if _is_zero_or_tiny(p)]
    moved, last, rounds = _unlock(model, inputs, labels, loss, first)
    shatter = None if first.error or last.input_gradient is None else _shatter(model, inputs, labels, loss, last)
    with torch.no_grad():
        for parameter, value in begun:
            parameter.copy_(value)
    trial = None
    if first.error is None and first.loss is not None and (optimizer is not None or steps):
        trial = try_steps(model, inputs, labels, loss, optimizer=optimizer, steps=steps)
    blocked = [
        name
        for name, gradient in last.parameters.items()
        if gradient is not None and gradient.norm == 0 and _is_weight(model, name)
    ]
    return Reading(
        graph=first.graph,
        values=first.values,
        gradients=last.gradients if len(last.graph.nodes) == len(first.graph.nodes) else first.gradients,
        additions=find_additions(first.graph),
        trunk=_trunk(first.graph),
        parameters=_parameters(model, first),
        batch_norms=norms,
        inputs=[_input_facts(name, x) for name, x in tensors(inputs) if name in _carrying(first.graph)],
        training=model.training,
        loss=first.loss,
        labels=labels,
        logits=first.logits,
        cross_entropy=is_cross_entropy(loss, labels),
        variations=last.variations if moved else first.variations,
        blocked=blocked,
        rounds=rounds,
        shatter=shatter,
        trial=trial,
        error=first.error,
        error_site=first.error_site,
    )


def _pass(model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None) -> Pass:
    """A pass seen by torch's functions; where they do not see inside the model, by aten's operators."""
    with same_draws():
        done = run_pass(model, inputs, labels, loss)
    if done.error is None and not _seen(model, done.graph):
        with same_draws():
            again = run_pass(model, inputs, labels, loss, operators=True)
        if len(again.graph.nodes) > len(done.graph.nodes):
            return again
    return done


def _seen(model: nn.Module, graph: Graph) -> bool:
    """Whether the output is in the graph, and no module is one node whose inside was hidden."""
    names = {type(module).__name__ for module in model.modules() if next(module.children(), None) is not None}
    return bool(graph.outputs) and not any(node.name in names and node.num_weights for node in graph.nodes)


def _unlock(
    model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None, first: Pass
) -> tuple[list[nn.Parameter], Pass, int]:
    """Move what is zero and has a gradient, as a step would, until each weight has one or nothing moves.

    Heads, last layers and scales that begin at zero keep gradients from what is before them in the first step only.
    """
    moved: list[nn.Parameter] = []
    named, last = dict(model.named_parameters()), first
    biases = {id(getattr(module, "bias", None)) for module in model.modules()}  # added: moving them unlocks nothing
    stream = torch.Generator().manual_seed(0)
    for rounds in range(MOST_ROUNDS):
        tiny = [p for p in named.values() if _is_tiny_scale(p) and id(p) not in biases] if rounds == 0 else []
        locked = [n for n, g in last.parameters.items() if g is not None and g.norm == 0 and _is_weight(model, n)]
        zeros = [named[n] for n, g in last.parameters.items() if g is not None and g.norm > 0 and not named[n].any()]
        zeros = [p for p in zeros if id(p) not in biases]
        if not tiny and not (locked and zeros):
            return moved, last, rounds
        with torch.no_grad():
            for parameter in tiny:
                parameter.fill_(MOVED)
            for parameter in zeros:
                fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
                noise = torch.randn(parameter.shape, generator=stream) / fan_in**0.5
                parameter.copy_(noise if parameter.dim() > 1 else MOVED * noise)
        moved += zeros + tiny
        with same_draws():
            last = run_pass(model, inputs, labels, loss)
    return moved, last, MOST_ROUNDS


def _is_tiny_scale(p: nn.Parameter) -> bool:
    """Whether a parameter is one small number for all channels, as LayerScale begins: its branch hardly counts yet."""
    if sum(size > 1 for size in p.shape) != 1 or not p.is_floating_point():
        return False
    least, most = torch.aminmax(p.detach())
    return bool(least == most) and 0 < abs(float(most)) <= TINY


def _is_zero_or_tiny(p: nn.Parameter) -> bool:
    return not p.any() or _is_tiny_scale(p)


def _is_weight(model: nn.Module, name: str) -> bool:
    return sum(size > 1 for size in model.get_parameter(name).shape) >= 2


def _shatter(model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None, done: Pass) -> float | None:
    """Cosine of the input gradient with that at inputs NEAR, relative to their size."""
    gradient = done.input_gradient
    if gradient is None or not torch.isfinite(gradient).all() or not gradient.any():
        return None
    stream = torch.Generator().manual_seed(0)

    def near(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        noise = torch.randn(x.shape, generator=stream).to(x.device, x.dtype)
        return x.detach() + NEAR * x.detach().square().mean().sqrt() * noise

    with same_draws():
        other = input_gradient(model, map_tensors(near, inputs), labels, loss)
    if other is None or not torch.isfinite(other).all() or not other.any():
        return None
    return float(quantity.cosine(gradient, other))


def _carrying(graph: Graph) -> set[str]:
    """Names of the inputs that carry the signal: images and features, no masks."""
    return {node.site for node in graph.of_kind("input") if node.carries}


def _trunk(graph: Graph) -> list[int]:
    if not graph.outputs:
        return []
    return [i for i in graph.dominators(graph.outputs[0]) if graph.nodes[i].kind == "weight"]


def _batch_norms(model: nn.Module) -> list[BatchNorm]:
    norms = []
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORMS) and isinstance(module.running_mean, Tensor):
            tracked = int(module.num_batches_tracked) if module.num_batches_tracked is not None else 0
            fresh = not module.running_mean.any() and bool((module.running_var == 1).all())  # type: ignore[union-attr]
            norms.append(BatchNorm(name, module.training, module.momentum, tracked, fresh))
    return norms


@torch.no_grad()
def _parameters(model: nn.Module, done: Pass) -> dict[str, Parameter]:
    found = {}
    for name, p in model.named_parameters():
        long = [size for size in p.shape if size > 1]
        fan_in = p[0].numel() if p.dim() > 1 else 1
        several = p.dim() > 1 and p.shape[0] > 1 and fan_in > 1
        norm = float(p.norm()) if p.is_floating_point() else 0.0
        equal = several and bool(quantity.equal_rows(p))
        finite = norm < float("inf") or bool(torch.isfinite(p).all())
        gradient = done.parameters.get(name)
        found[name] = Parameter(name, tuple(p.shape), p.requires_grad, len(long) >= 2, norm, equal, finite, gradient)
    return found


@torch.no_grad()
def _input_facts(name: str, x: Tensor) -> InputFacts:
    x = x.detach().float()
    variation = float(quantity.sample_variation(x)) if x.dim() > 1 and x.shape[0] > 1 else 1.0
    axis = 1 if x.dim() in (2, 4, 5) else -1
    spread = 1.0
    if x.dim() > 1 and x.shape[axis] > 1 and x.numel() > x.shape[axis]:
        deviations = x.std(dim=[i for i in range(x.dim()) if i != axis % x.dim()], correction=0)
        positive = deviations[deviations > 0]
        spread = float(positive.max() / positive.min()) if positive.numel() else 1.0
    std = float(x.std(correction=0)) if x.numel() else 0.0
    return InputFacts(
        name, float(x.mean()), std, float(x.min()), float(x.max()), bool(torch.isfinite(x).all()), variation, spread
    )


def num_classes(reading: Reading) -> int | None:
    """Classes that the logits name, where the loss is cross-entropy."""
    logits, labels = reading.logits, reading.labels
    if not reading.cross_entropy or logits is None or logits.dim() < 2 or isinstance(labels, Mapping):
        return None
    sequence = logits.dim() == labels.dim() + 1 and labels.dim() > 1 and logits.shape[:-1] == labels.shape
    return logits.shape[-1 if sequence else 1]
