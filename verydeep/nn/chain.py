"""Chains of norms, ReLUs and convolutions, run in the fused steps of `fused.py`: the fast route of a residual unit."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from verydeep.nn import fused
from verydeep.nn.norm_act import NormAct


class Step(NamedTuple):
    """conv(relu(norm(x))), each of the three where it is."""

    norm: nn.BatchNorm2d | None
    relu: bool
    conv: nn.Conv2d | None

    @property
    def ends_in_norm(self) -> bool:
        return self.conv is None and not self.relu


def steps(modules: Iterable[nn.Module], x: Tensor) -> list[Step] | None:
    """The fused steps that do what the modules do to x, one after another; None if they are not all of these kinds.

    A NormAct is taken apart, and so nothing may watch it.
    """
    result: list[Step] = []
    norm: nn.BatchNorm2d | None = None
    relu, channels = False, x.shape[1]
    for module in modules:
        if fused.plain_conv(module, x, channels=channels):
            result.append(Step(norm, relu, module))
            norm, relu, channels = None, False, module.out_channels
            continue
        pair = module if type(module) is NormAct else None
        if norm is not None or (pair is not None and not (fused.unwatched(pair) and fused.unwatched(pair.act))):
            return None
        norm_module = module if pair is None else pair.norm
        if not fused.plain_norm(norm_module, x, channels=channels):
            return None
        norm, relu = norm_module, pair is not None
    return result if norm is None else [*result, Step(norm, relu, None)]


def run(chain: Sequence[Step], x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
    """relu(chain(x) + residual); `relu` only where the chain ends with a norm."""
    *before, last = chain
    for step in before:
        x = _run_step(step, x)
    return _run_step(last, x, residual=residual, relu=relu)


def run_first(step: Step, x: Tensor) -> tuple[Tensor, Tensor]:
    """The result of a step that has a norm and a convolution, and x for the shortcut, see `fused.norm_act_conv`."""
    assert step.norm is not None and step.conv is not None
    return fused.norm_act_conv(step.norm, x, step.conv, relu=step.relu)


def _run_step(step: Step, x: Tensor, *, residual: Tensor | None = None, relu: bool = False) -> Tensor:
    norm, conv = step.norm, step.conv
    if norm is not None and conv is not None:
        return fused.norm_act_conv(norm, x, conv, relu=step.relu, residual=residual)[0]
    if norm is not None and not step.relu:
        return fused.norm_act(norm, x, relu=relu, residual=residual)
    assert norm is not None or conv is not None
    y = fused.norm_act(norm, x) if norm is not None else conv(x)  # type: ignore[misc]
    return y if residual is None else fused.sum_in_place(y, residual)


def projected(shortcut: nn.Module, x: Tensor) -> Tensor:
    """h(x), in fused steps where h is a chain."""
    chain = steps(shortcut, x) if type(shortcut) is nn.Sequential else None
    return run(chain, x) if chain else shortcut(x)
