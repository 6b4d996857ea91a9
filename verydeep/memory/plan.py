"""`plan_memory`: what units keep and what is recomputed, so that a training step fits into a budget; `apply_plan`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import nn

from verydeep.errors import UsageError
from verydeep.memory.choose import Choice, choose, smallest, unplanned
from verydeep.memory.count import parameter_bytes, tensor_bytes
from verydeep.memory.segment import SegmentedSequential, add_segment, checkpoint_module, remove_checkpoints
from verydeep.memory.system import resident_bytes
from verydeep.memory.trace import Trace, trace
from verydeep.size import format_size, parse_size


@dataclass(frozen=True)
class Segment:
    """Consecutive units that are kept whole, or recomputed from what goes into the first of them.

    Args:    units: their names
             recomputed: whether they are
             in_sequential: whether one `nn.Sequential` runs them
             bytes: that they keep between forward and backward
             recomputed_bytes: that they hold once they are recomputed; 0 if they are kept whole
    """

    units: tuple[str, ...]
    recomputed: bool
    in_sequential: bool
    bytes: int
    recomputed_bytes: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """What a training step keeps and recomputes. `apply_plan` puts it into effect; `str` is a table of it.

    Args:    budget: bytes that the step may hold at its peak
             input_shape: (N, C, H, W) of the images
             segments: all units, in running order
             state_bytes: parameters, gradients, optimizer state, buffers, images
             kept_bytes: kept between forward and backward
             peak_bytes: the most that the step holds, states and all
             unplanned_bytes: the same without a plan
             extra_work: multiply-adds of the recomputation over those of the step, its backward being twice its forward
             fused_bytes: that units need not keep because their norms and ReLUs are recomputed by fused functions
    """

    budget: int
    input_shape: tuple[int, ...]
    segments: tuple[Segment, ...]
    state_bytes: int
    kept_bytes: int
    peak_bytes: int
    unplanned_bytes: int
    extra_work: float
    fused_bytes: int

    @property
    def num_recomputed(self) -> int:
        """Units that are recomputed."""
        return sum(len(segment.units) for segment in self.segments if segment.recomputed)

    def summary(self) -> dict[str, Any]:
        """The plan in a few numbers."""
        return {
            "budget": self.budget,
            "peak_bytes": self.peak_bytes,
            "kept_bytes": self.kept_bytes,
            "unplanned_bytes": self.unplanned_bytes,
            "extra_work": self.extra_work,
            "units": sum(len(segment.units) for segment in self.segments),
            "recomputed_units": self.num_recomputed,
            "recomputed_segments": sum(segment.recomputed for segment in self.segments),
        }

    def to_dict(self) -> dict[str, Any]:
        """The whole plan as plain values."""
        segments = [
            {"first": s.units[0], "last": s.units[-1], "units": len(s.units), "recomputed": s.recomputed,
             "bytes": s.bytes, "recomputed_bytes": s.recomputed_bytes}
            for s in self.segments
        ]  # fmt: skip
        shape = {"input_shape": list(self.input_shape), "state_bytes": self.state_bytes}
        return self.summary() | shape | {"fused_bytes": self.fused_bytes, "segments": segments}

    def __str__(self) -> str:
        lines = [
            f"memory plan for {tuple(self.input_shape)} within {format_size(self.budget)}: peak "
            f"{format_size(self.peak_bytes)}, without it {format_size(self.unplanned_bytes)}; "
            f"{100 * self.extra_work:.1f} % more work"
        ]
        lines += [f"  {line}" for line in self._stages()]
        if self.fused_bytes:
            lines.append(f"  norm and ReLU recomputed by fused functions: {format_size(self.fused_bytes)} less to keep")
        return "\n".join(lines)

    def _stages(self) -> Iterator[str]:
        for container, group in groupby(self.segments, lambda segment: segment.units[0].rpartition(".")[0]):
            segments = list(group)
            whole = sum(len(segment.units) for segment in segments if not segment.recomputed)
            lengths = [len(segment.units) for segment in segments if segment.recomputed]
            parts = [f"{whole} kept whole"] if whole else []
            if lengths:
                least, most = min(lengths), max(lengths)
                size = f"{least}" if least == most else f"{least} to {most}"
                segments_of = "1 segment of" if len(lengths) == 1 else f"{len(lengths)} segments of"
                parts.append(f"{sum(lengths)} recomputed in {segments_of} {size}")
            kept = format_size(sum(segment.bytes for segment in segments))
            yield f"{container or 'units'}: {whole + sum(lengths)} units, {', '.join(parts)}; keep {kept}"


class DoesNotFit(UsageError):
    """Not even with everything recomputed does a step fit into the budget.

    Args:    smallest_budget: that would do for this batch, in bytes
             largest_batch: that would do with this budget; 0 if not one image does
    """

    def __init__(self, text: str, *, smallest_budget: int, largest_batch: int) -> None:
        super().__init__(text)
        self.smallest_budget, self.largest_batch = smallest_budget, largest_batch


def plan_memory(
    model: nn.Module,
    input_shape: Sequence[int],
    budget: str | int,
    *,
    states: int = 1,
    other_bytes: int = 0,
) -> MemoryPlan:
    """The plan with the least extra work with which a training step in fp32 fits into a budget.

    The budget is for what the step holds at its peak: parameters, gradients, optimizer state, buffers, images, what is
    kept for the backward pass, and what is recomputed or needed in passing; not Python and torch themselves. A unit is
    kept whole or is in a segment, consecutive units of one `nn.Sequential`, of which only the input is kept. A segment
    is as long as fits where the backward pass comes to it. What is left of the budget keeps units whole, those with
    most work a byte first, of equal ones the last. The model is not changed: see `apply_plan`.

    Args:    model: any network of residual units, on any device
             input_shape: (N, C, H, W) of a micro-batch
             budget: 2GB, 512MB, 1GiB, or bytes
             states: tensors that the optimizer keeps for each parameter: 1 is momentum, 2 Adam's moments
             other_bytes: held all the time besides
    Raises:  DoesNotFit: (a UsageError) if nothing fits, with the smallest budget and the largest batch that would.
             UsageError: if the budget is no size, or the model has no residual unit, or one runs twice.
    Source:  Chen et al. 2016, for segments; Gruslys et al. 2016, for optimal ones in a fixed memory
    Differs: from both in that units may be kept whole, and in that nothing is recomputed more than once
    """
    shape, limit = tuple(input_shape), parse_size(budget)
    step = trace(model, shape)
    state_bytes = _state_bytes(model, shape, states) + other_bytes
    choice = choose(step, limit - state_bytes)
    if choice is not None:
        return _plan(step, choice, budget=limit, input_shape=shape, state_bytes=state_bytes)
    least = state_bytes + smallest(step).peak_bytes
    per_image = -(-(least - state_bytes) // shape[0])
    batch = _largest_batch(model, shape, limit, max(0, limit - state_bytes) // per_image, states, other_bytes)
    would = f", or a batch of {batch}" if batch else "; not one image fits"
    raise DoesNotFit(
        f"budget {budget}: a step on {shape} holds {format_size(least)} with everything recomputed; nearest "
        f"{format_size(least)}{would}",
        smallest_budget=parse_size(format_size(least)),
        largest_batch=batch,
    )


def apply_plan(model: nn.Module, plan: MemoryPlan) -> None:
    """Put a plan into effect, in place of any earlier one.

    Names, parameters, buffers, hooks, copies and pickles of the model are as before, and so is what it computes.
    `remove_checkpoints` takes the plan back.

    Raises:  UsageError: if the plan is for another network.
    """
    modules = dict(model.named_modules())
    for name in (name for segment in plan.segments for name in segment.units):
        if name not in modules:
            raise UsageError(f"plan for unit {name!r}: {type(model).__name__} has no such module; plan for this model")
    remove_checkpoints(model)
    now = resident_bytes()
    most_bytes = None if now is None else now + 4 * plan.peak_bytes // 5  # the rest is for what trimming comes after
    for segment in plan.segments:
        if not segment.recomputed:
            continue
        container = modules[segment.units[0].rpartition(".")[0]]
        if segment.in_sequential and type(container) in (nn.Sequential, SegmentedSequential):
            first = list(container.children()).index(modules[segment.units[0]])
            add_segment(container, first, first + len(segment.units), most_bytes=most_bytes)
        else:
            checkpoint_module(modules[segment.units[0]])


def _state_bytes(model: nn.Module, input_shape: tuple[int, ...], states: int) -> int:
    """Held all the time: parameters with theirs, images, buffers twice: recomputation begins with those of before."""
    images = 4 * math.prod(input_shape)
    return parameter_bytes(model, states=states) + 2 * tensor_bytes(model.buffers()) + images


def _largest_batch(
    model: nn.Module, shape: tuple[int, ...], limit: int, guess: int, states: int, other_bytes: int
) -> int:
    """The largest batch whose smallest step fits; what a step holds beside its states grows with the batch."""
    for batch in range(guess, 0, -1):
        state_bytes = _state_bytes(model, (batch, *shape[1:]), states) + other_bytes
        if smallest(trace(model, (batch, *shape[1:]))).peak_bytes <= limit - state_bytes:
            return batch
    return 0


def _plan(step: Trace, choice: Choice, *, budget: int, input_shape: tuple[int, ...], state_bytes: int) -> MemoryPlan:
    segments = [
        Segment(
            tuple(unit.name for unit in step.units[part.first : part.end]),
            recomputed=part.recomputed,
            in_sequential=step.units[part.first].place is not None,
            bytes=part.kept_bytes,
            recomputed_bytes=part.recomputed_bytes,
        )
        for part in choice.parts
    ]
    return MemoryPlan(
        budget=budget,
        input_shape=input_shape,
        segments=tuple(segments),
        state_bytes=state_bytes,
        kept_bytes=choice.kept_bytes,
        peak_bytes=state_bytes + choice.peak_bytes,
        unplanned_bytes=state_bytes + unplanned(step).peak_bytes,
        extra_work=choice.rework / (3 * step.work) if step.work else 0.0,
        fused_bytes=max(0, step.plain_bytes - step.unit_bytes),
    )
