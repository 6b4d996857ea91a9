"""`watch`: signal and gradient of a model in anybody's training loop, to TensorBoard or a callback."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from verydeep.analysis import quantity
from verydeep.errors import UsageError

Report = dict[str, float]
Callback = Callable[[int, Report], None]


class Writer(Protocol):
    """TensorBoard's `SummaryWriter`, as far as it is called."""

    def add_scalar(self, tag: str, scalar_value: Any, global_step: Any = None) -> Any: ...


class Watch:
    """Counts steps and reads every `every`-th, the first included; `step` ends each.

    A report has `loss`, and by site `signal/NAME` (mean square of a module's output), `gradient/NAME` (norm of the
    gradient with respect to it), `weight/NAME` and `update/NAME` (norm of a weight's gradient over the weight's).
    """

    def __init__(self, model: nn.Module, *, every: int, to: Callback | Writer | None) -> None:
        self.model = model
        self.every = every
        self.num_steps = 0
        self.reports: list[tuple[int, Report]] = []
        self._to = to
        self._values: dict[str, Tensor] = {}

    @property
    def reading(self) -> bool:
        """Whether this step is read."""
        return self.num_steps % self.every == 0

    def hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        """What reads the output of the module `name`."""

        def read(module: nn.Module, inputs: Any, output: Any) -> None:
            if not self.reading or not isinstance(output, Tensor) or not output.is_floating_point():
                return
            with torch.no_grad():
                self._values[f"signal/{name}"] = quantity.mean_square(output.detach())
            if output.requires_grad:
                output.register_hook(lambda gradient: self._gradient(name, gradient))

        return read

    def _gradient(self, name: str, gradient: Tensor) -> None:
        self._values[f"gradient/{name}"] = quantity.norm(gradient.detach())

    @torch.no_grad()
    def step(self, loss: Tensor | float | None = None) -> Report | None:
        """End a step, after backward and before gradients are zeroed; the report, if this step was read."""
        report = None
        if self.reading:
            for name, parameter in self.model.named_parameters():
                if parameter.grad is not None and parameter.dim() > 1:
                    weight = quantity.norm(parameter)
                    self._values[f"weight/{name}"] = weight
                    self._values[f"update/{name}"] = quantity.norm(parameter.grad) / weight.clamp(min=1e-30)
            if loss is not None:
                self._values["loss"] = torch.as_tensor(loss).detach().double().reshape(())
            names, values = list(self._values), [v.double().reshape(()).cpu() for v in self._values.values()]
            report = dict(zip(names, torch.stack(values).tolist() if values else [], strict=True))
            self._send(report)
        self._values = {}
        self.num_steps += 1
        return report

    def _send(self, report: Report) -> None:
        if callable(self._to):
            self._to(self.num_steps, report)
        elif self._to is not None:
            for name, value in report.items():
                self._to.add_scalar(name, value, self.num_steps)
        else:
            self.reports.append((self.num_steps, report))


@contextmanager
def watch(model: nn.Module, *, every: int = 100, to: Callback | Writer | None = None) -> Iterator[Watch]:
    """Within it, a training loop that calls `step` on what this gives is read every `every` steps.

    Args:    every: steps from one reading to the next
             to: called with (step, report), or a TensorBoard writer; default: kept in `reports`
    Raises:  UsageError: if `every` is below 1.

    >>> model = nn.Linear(2, 1)
    >>> with watch(model, every=2) as watched:
    ...     for _ in range(4):
    ...         loss = model(torch.ones(3, 2)).square().mean()
    ...         loss.backward()
    ...         _ = watched.step(loss)
    >>> [step for step, report in watched.reports]
    [0, 2]
    """
    if every < 1:
        raise UsageError(f"every {every}: must be at least 1")
    watched = Watch(model, every=every, to=to)
    leaves = [(name, module) for name, module in model.named_modules() if next(module.children(), None) is None]
    handles = [module.register_forward_hook(watched.hook(name)) for name, module in leaves]
    try:
        yield watched
    finally:
        for handle in handles:
            handle.remove()
