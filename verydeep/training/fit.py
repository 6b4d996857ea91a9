"""Will a training step fit into memory: asked before the first one, made to where there is a budget, and answered with
what would fit."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from verydeep.config import RunConfig
from verydeep.errors import RunError, UsageError, is_out_of_memory
from verydeep.memory.count import activation_bytes, largest_batch, parameter_bytes, tensor_bytes
from verydeep.memory.plan import DoesNotFit, MemoryPlan, apply_plan, plan_memory
from verydeep.memory.system import free_bytes
from verydeep.nn.fused import plain_operations
from verydeep.size import format_size
from verydeep.training.distributed import World


def check_fits(
    model: nn.Module, image_shape: tuple[int, ...], *, batch_size: int, device: torch.device, precision: str
) -> None:
    """Refuse a batch whose step does not fit into the memory that is free.

    Args:    image_shape: (C, H, W) of one image
             batch_size: images of this process's micro-batch
    Raises:  UsageError: with the bytes needed, the bytes free and the largest batch that fits.
    """
    free = free_bytes(device)
    if free is None:
        return
    try:
        with _operations_in(precision):
            kept = activation_bytes(model, image_shape, batch_size=batch_size)
    except UsageError:  # of one of our own modules, which the run would meet in its first step
        raise
    except Exception:  # the code of a user's module may do anything on the meta device; this is advice, not a rule
        return
    if precision == "bf16":
        kept //= 2  # at least half stays, so what is refused does not fit
    needed = parameter_bytes(model) + kept
    if needed > free:
        most = largest_batch(model, image_shape, free_bytes=free)
        raise UsageError(
            f"batch_size {batch_size}: a step keeps {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free on {device}; "
            f"nearest that fits {most} (with --accumulate for the same step)"
        )


def _operations_in(precision: str) -> AbstractContextManager:
    """The operations that a step runs: under autocast no fused ones."""
    return nullcontext() if precision == "fp32" else plain_operations()


def make_fit(
    model: nn.Module, config: RunConfig, image_shape: tuple[int, ...], *, batch_size: int, world: World
) -> MemoryPlan | None:
    """Put a plan for the step of a resolved config into effect; without a budget, see that the step fits as it is.

    Args:    image_shape: (C, H, W) of one image
             batch_size: images of this process's micro-batch
    Raises:  UsageError: if nothing fits, with the smallest budget and the largest batch that would; if what fits into
                 the budget does not into the memory that is free.
    """
    if config.memory_budget is None:
        check_fits(model, image_shape, batch_size=batch_size, device=world.device, precision=config.precision)
        return None
    averaged = tensor_bytes(model.parameters()) + tensor_bytes(model.buffers()) if config.ema else 0
    try:
        with _operations_in(config.precision):
            plan = plan_memory(
                model,
                (batch_size, *image_shape),
                config.memory_budget,
                states=2 if config.optimizer == "adamw" else int(bool(config.momentum)),
                other_bytes=averaged + tensor_bytes(model.buffers()),  # the step remembers those that it began with
            )
    except DoesNotFit as error:
        most = error.largest_batch * world.size
        advice = f", or batch_size {most} (with --accumulate for the same step)" if most else "; not one image fits"
        raise UsageError(
            f"memory_budget {config.memory_budget}: a step on batch_size {config.batch_size} holds "
            f"{format_size(error.smallest_budget)} with everything recomputed; nearest "
            f"{format_size(error.smallest_budget)}{advice}"
        ) from error
    except UsageError as error:
        raise UsageError(f"memory_budget {config.memory_budget}: {error}") from error
    free = free_bytes(world.device)
    if free is not None and plan.peak_bytes > free:
        raise UsageError(
            f"memory_budget {config.memory_budget}: the step would hold {format_size(plan.peak_bytes)}; nearest "
            f"{format_size(free)}, which are free on {world.device}"
        )
    apply_plan(model, plan)
    return plan


@contextmanager
def naming_memory(what: str, batch_size: int | None = None) -> Iterator[None]:
    """Turn an allocation that fails into one line that says what wanted it, and what to try.

    Args:    batch_size: of the step, if it is a training step
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one too
        if not is_out_of_memory(error):
            raise
        advice = "give less of it"
        if batch_size is not None:
            advice = (
                f"the last checkpoint is intact. Try a new run with --batch-size {max(1, batch_size // 2)} "
                "--accumulate 2, or a smaller --image-size"
            )
        raise RunError(f"out of memory at {what}; {advice}") from error
