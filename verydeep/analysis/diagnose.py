"""`diagnose`: one call, one batch, and the layers at fault with evidence, reasons and remedies."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from verydeep.analysis.call import Inputs, Loss
from verydeep.analysis.diagnosis import Diagnosis
from verydeep.analysis.reading import Reading, read
from verydeep.analysis.rule import judge
from verydeep.analysis.site import sites_of
from verydeep.analysis.unchanged import unchanged


def diagnose(
    model: nn.Module,
    images: Inputs,
    labels: Any = None,
    loss: Loss | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    steps: int = 0,
) -> Diagnosis:
    """Why this model does not train, or that nothing speaks against it.

    A few forward and backward passes in the model's own mode; afterwards model, optimizer and random states are as
    before, bit for bit, also if the model raises.

    Args:    images: a batch: a tensor, a tuple of arguments, or a dict of keywords
             labels: class numbers, or what `loss` takes; without, gradients are of a random direction of the output
             loss: of (output, labels); default: cross-entropy for class numbers, mean squared error otherwise, or the
                 loss that the model's output holds
             optimizer: the user's own; one step with it is measured
             steps: training steps on this batch, with `optimizer` or Adam
    Raises:  whatever the model raises, unless it is itself the fault that was looked for

    >>> torch.manual_seed(0) and None
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(-1))
    >>> found = diagnose(model, torch.randn(32, 8), torch.randint(0, 3, (32,)))
    >>> found.findings[0].rule, found.findings[0].severity
    ('double-softmax', 'error')
    """
    begun = time.perf_counter()
    with unchanged(model), _uncollected():
        reading = read(model, images, labels, loss, optimizer=optimizer, steps=steps)
    findings = judge(reading)
    if reading.error is not None and not any(finding.severity == "error" for finding in findings):
        raise reading.error
    return Diagnosis(type(model).__name__, findings, sites_of(reading), _facts(model, reading, begun))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without garbage collection, which would walk a graph of thousands of nodes again and again while it grows."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _facts(model: nn.Module, reading: Reading, begun: float) -> dict[str, Any]:
    outputs = reading.graph.outputs
    facts: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "operations": len(reading.graph.nodes) - 1,
        "residual additions": len(reading.additions),
        "shortest path": reading.graph.nodes[outputs[0]].fewest if outputs else None,
        "longest path": reading.graph.nodes[outputs[0]].most if outputs else None,
        "mode": "train" if reading.training else "eval",
        "loss": reading.loss,
        "gradient correlation": reading.shatter,
    }
    if reading.trial is not None:
        facts |= {"loss after": reading.trial.losses[-1], "steps": len(reading.trial.losses) - 1}
    facts["seconds"] = round(time.perf_counter() - begun, 2)
    return {name: value for name, value in facts.items() if value is not None}
