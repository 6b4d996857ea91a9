"""One forward and one backward pass of any model under the recorder, reduced to numbers. `reading` runs a few."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from verydeep.analysis import quantity
from verydeep.analysis.call import Inputs, Loss, call, logits_of, loss_value, map_tensors, tensors
from verydeep.analysis.graph import Graph
from verydeep.analysis.halved import halved
from verydeep.analysis.record import recording
from verydeep.analysis.signal_reader import SignalReader


@dataclass(frozen=True)
class Gradient:
    """A parameter's gradient: its norm, and whether all output units have the same."""

    norm: float
    equal_rows: bool


@dataclass
class Pass:
    """What one pass left.

    Args:    values, gradients: by node of the graph
             parameters: by name; None for one that no gradient reached
             input_gradient: with respect to the first input of floating point
             logits: detached
             loss: None if it was not computed
             variations: how far samples differ, in the head's input and in the output
             error, error_site: what the model or loss raised, and the module that ran
    """

    graph: Graph
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    gradients: dict[int, float] = field(default_factory=dict)
    parameters: dict[str, Gradient | None] = field(default_factory=dict)
    input_gradient: Tensor | None = None
    logits: Tensor | None = None
    loss: float | None = None
    variations: dict[str, float] = field(default_factory=dict)
    error: Exception | None = None
    error_site: str = ""


def run_pass(
    model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None, *, operators: bool = False, backward: bool = True
) -> Pass:
    """Record one forward pass, the loss and the backward pass, in the model's own mode.

    `ValueError` and `RuntimeError` of the model, which shapes and labels cause, are kept as `error`.
    """
    leaves: list[Tensor] = []
    given = map_tensors(lambda x: _fresh(x, leaves), inputs)
    reader = SignalReader(Graph())
    done = Pass(reader.graph)
    output = value = None
    with torch.enable_grad():
        with halved(model), recording(model, reader, graph=reader.graph, operators=operators) as recorder:
            for name, x in tensors(given):
                recorder.input(x, name)
            try:
                output = call(model, given)
                _mark_outputs(recorder, output)
                value = loss_value(output, labels, loss)
            except (ValueError, RuntimeError, IndexError, TypeError) as error:
                done.error, done.error_site = error, recorder.stack[-1] if recorder.stack else "loss"
        _summarise(done, reader, output)
        if value is not None:
            done.loss = float(value.detach().mean())
            if backward and value.requires_grad:
                value.mean().backward()
                done.parameters = _parameter_gradients(model)
                done.input_gradient = leaves[0].grad if leaves else None
    done.values, done.gradients = reader.floats()
    return done


def input_gradient(model: nn.Module, inputs: Inputs, labels: Any, loss: Loss | None) -> Tensor | None:
    """The gradient with respect to the first input of floating point, without a recorder."""
    leaves: list[Tensor] = []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            output = call(model, map_tensors(lambda x: _fresh(x, leaves), inputs))
            value = loss_value(output, labels, loss).mean()
            if leaves and value.requires_grad:
                value.backward()  # not autograd.grad, which reentrant checkpoints refuse
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)
    return leaves[0].grad if leaves else None


@contextmanager
def same_draws() -> Iterator[None]:
    """Within it random numbers are drawn from where they are now; afterwards they are where they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield


def _fresh(x: Tensor, leaves: list[Tensor]) -> Tensor:
    """A copy of an input, which a model may write to; of floating point, with a gradient."""
    x = x.detach()
    if not x.is_floating_point():
        return x.clone()
    leaves.append(x.clone().requires_grad_())
    return leaves[-1].clone()


def _mark_outputs(recorder: Any, output: Any) -> None:
    logits = logits_of(output)
    first = [] if logits is None else [logits]
    nodes = [recorder.node_of(x) for x in (*first, *(x for _, x in tensors(output, "output")))]
    recorder.graph.outputs = list(dict.fromkeys(node for node in nodes if node is not None))


@torch.no_grad()
def _summarise(done: Pass, reader: SignalReader, output: Any) -> None:
    logits = None if output is None else logits_of(output)
    done.logits = None if logits is None else logits.detach()
    for name, x in (("features", reader.head_input), ("output", done.logits)):
        if x is not None and x.dim() > 1 and x.shape[0] > 1 and x.is_floating_point():
            done.variations[name] = float(quantity.sample_variation(x))
            done.variations[f"{name} rank"] = float(quantity.effective_rank(x))
    reader.head_input = None


@torch.no_grad()
def _parameter_gradients(model: nn.Module) -> dict[str, Gradient | None]:
    """Norms of the parameters' gradients, which are let go."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    known = [(name, p, p.grad) for name, p in named if p.grad is not None]
    norms = torch.stack([quantity.norm(g) for _, _, g in known]).tolist() if known else []
    found: dict[str, Gradient | None] = {name: None for name, _ in named}
    for (name, p, g), norm in zip(known, norms, strict=True):
        several = g.dim() > 1 and g.shape[0] > 1 and not g.is_sparse
        found[name] = Gradient(norm, several and norm > 0 and _alike(p) and _nearly_alike(g))
        p.grad = None
    return found


def _alike(w: Tensor) -> bool:
    return bool(quantity.equal_rows(w))


def _nearly_alike(g: Tensor) -> bool:
    """Up to rounding: sums of the same numbers in another order."""
    return bool((g - g[:1]).norm() <= 1e-4 * g.norm())
