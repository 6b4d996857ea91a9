"""What the arguments of He et al. 2016 rest on, by residual unit: shortcut gains, truncation, signals, gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from verydeep.analysis.unchanged import unchanged
from verydeep.analysis.units import residual_units
from verydeep.nn.norm_act import NormAct
from verydeep.nn.unit import ResidualUnit
from verydeep.training.step import logits_of


@final
@dataclass(frozen=True)
class Propagation:
    """One forward and backward pass, read at each residual unit l in running order.

    Args:    shortcut_gain: ||J_h^T v|| / ||v|| for a random v, J_h the Jacobian of the shortcut: the factor h'_l of
                 Eq. 8; 1 for the identity. None where the unit changes the dimension, 0 without a shortcut
             truncated: share of y_l that the activation f after the addition sets to zero; 0 where f is none
             signal: mean square of x_{l+1}, the unit's output
             mean: mean of x_{l+1}
             gradient_norm: ||dE/dx_{l+1}||, E the mean loss of the batch
    """

    shortcut_gain: list[float | None]
    truncated: list[float]
    signal: list[float]
    mean: list[float]
    gradient_norm: list[float]

    @property
    def gain_product(self) -> float:
        """The product of all shortcut gains, lambda^L for a constant lambda: the first term of Eq. 8."""
        return (
            torch.tensor([gain for gain in self.shortcut_gain if gain is not None], dtype=torch.float64).prod().item()
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values, four digits each, and the product."""
        rounded = {name: [_rounded(value) for value in values] for name, values in asdict(self).items()}
        return rounded | {"gain_product": _rounded(self.gain_product)}


def propagation(model: nn.Module, images: Tensor, labels: Tensor) -> Propagation:
    """Read a network of residual units in the mode in which it is, and leave it as it was.

    Shape:   images (N, C, H, W), labels (N,)
    Raises:  UsageError: if the model has no ResidualUnit.
    Source:  He et al. 2016, Eq. 5 and 8, sections 4.1 and 4.2
    """
    units = residual_units(model)
    readings = [_Reading() for _ in units]
    with unchanged(model), _reading(units.values(), readings), torch.enable_grad():
        x = images.detach().requires_grad_()  # so that there is a gradient even where all weights are frozen
        torch.autograd.grad(F.cross_entropy(logits_of(model(x)), labels), x)
    return Propagation(*([getattr(reading, name) for reading in readings] for name in _NAMES))


@dataclass
class _Reading:
    """The scalars of one unit, filled in as the passes reach it."""

    shortcut_gain: float | None = 0.0
    truncated: float = 0.0
    signal: float = float("nan")
    mean: float = float("nan")
    gradient_norm: float = float("nan")


_NAMES = ("shortcut_gain", "truncated", "signal", "mean", "gradient_norm")


@contextmanager
def _reading(units: Any, readings: list[_Reading]) -> Iterator[None]:
    handles = []
    for unit, reading in zip(units, readings, strict=True):
        handles.append(unit.register_forward_hook(_output_reader(reading)))
        if unit.shortcut is not None:
            handles.append(unit.shortcut.register_forward_hook(_gain_reader(reading)))
        act = _activation_after(unit)
        if act is not None:
            handles.append(act.register_forward_pre_hook(_truncation_reader(reading)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _activation_after(unit: ResidualUnit) -> nn.Module | None:
    """The ReLU of f."""
    return unit.postact.act if isinstance(unit.postact, NormAct) else unit.postact


def _output_reader(reading: _Reading) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
    def read(unit: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        values = output.detach().double()
        reading.signal, reading.mean = values.square().mean().item(), values.mean().item()
        output.register_hook(keep)

    def keep(gradient: Tensor) -> None:
        reading.gradient_norm = gradient.double().norm().item()

    return read


def _gain_reader(reading: _Reading) -> Callable[[nn.Module, tuple[Tensor], Any], None]:
    def read(shortcut: nn.Module, inputs: tuple[Tensor], output: Any) -> None:
        x = inputs[0].detach().requires_grad_()
        h = shortcut.forward(x)  # not called, so that this hook does not see it
        h = h[0] if isinstance(h, tuple) else h
        v = torch.randn_like(h)
        (back,) = torch.autograd.grad(h, x, v)
        reading.shortcut_gain = (back.norm() / v.norm()).item() if h.shape == x.shape else None

    return read


def _truncation_reader(reading: _Reading) -> Callable[[nn.Module, tuple[Tensor]], None]:
    def read(act: nn.Module, inputs: tuple[Tensor]) -> None:
        reading.truncated = (inputs[0] < 0).double().mean().item()

    return read


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
