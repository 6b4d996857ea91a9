"""Signals of a module read at named sites and reduced to scalars on the spot, forward and backward.

A site is a module by its name in the model. Nothing of the model is changed; hooks are gone when the probe closes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Record:
    """One reading.

    Args:    site: the module's name; "" is the model itself
             phase: `output` of the module in the forward pass, or `gradient` with respect to that output
             value: what `reduce` made of the tensor
    """

    site: str
    phase: str
    value: Tensor


class Probe:
    """Context manager that reads every module's output, and the gradient that comes back to it.

    Args:    model: any module; a module that is called twice is read twice
             reduce: from a tensor to a scalar, computed at once so that no signal is kept alive
    """

    def __init__(self, model: nn.Module, reduce: Callable[[Tensor], Tensor]) -> None:
        self._model = model
        self._reduce = reduce
        self._handles: list[torch.utils.hooks.RemovableHandle] = []
        self.records: list[Record] = []

    def __enter__(self) -> "Probe":
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_hook(self._reader(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()

    def _reader(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def read(module: nn.Module, inputs: object, output: object) -> None:
            if not isinstance(output, Tensor) or not output.is_floating_point():
                return
            self._record(name, "output", output)
            if output.requires_grad:
                output.register_hook(lambda gradient: self._record(name, "gradient", gradient))

        return read

    def _record(self, site: str, phase: str, tensor: Tensor) -> None:
        with torch.no_grad():
            self.records.append(Record(site, phase, self._reduce(tensor.detach())))


def first_nonfinite(
    model: nn.Module, images: Tensor, labels: Tensor, *, forward: Callable[[Tensor], Tensor] | None = None
) -> str | None:
    """Where a step first meets NaN or inf: input, parameters, outputs as they come, loss, gradients as they come back.

    Runs one forward and backward in the model's mode; gradients are cleared afterwards, buffers are the caller's.

    Args:    forward: from images to logits; the model if not given
    Returns: the site in words, or None if all is finite
    """
    if not torch.isfinite(images).all():
        return "input"
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"parameter {name}"
    with Probe(model, lambda tensor: torch.isfinite(tensor).all()) as probe:
        loss = F.cross_entropy((forward or model)(images), labels)
        num_outputs = len(probe.records)
        loss.backward()
    bad_parameters = [
        name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
    ]
    model.zero_grad()
    for i, record in enumerate(probe.records):
        if i == num_outputs and not torch.isfinite(loss):
            return "loss"
        if not record.value:
            return f"{record.phase} of {record.site or 'the model'}"
    if not torch.isfinite(loss):
        return "loss"
    return f"gradient of parameter {bad_parameters[0]}" if bad_parameters else None
