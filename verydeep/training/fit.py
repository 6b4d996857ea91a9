"""Will a training step fit into memory: asked before the first one, and answered with what would fit."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from verydeep.errors import RunError, UsageError
from verydeep.memory import activation_bytes, free_bytes, largest_batch, parameter_bytes


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
        kept = activation_bytes(model, image_shape, batch_size=batch_size)
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


@contextmanager
def naming_memory(batch_size: int) -> Iterator[None]:
    """Turn an allocation that fails into one line that says what to try."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise _out_of_memory(batch_size) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise _out_of_memory(batch_size) from error


def _out_of_memory(batch_size: int) -> RunError:
    return RunError(
        f"out of memory at batch_size {batch_size}; the last checkpoint is intact. Try a new run with --batch-size "
        f"{max(1, batch_size // 2)} --accumulate 2, or a smaller --image-size"
    )
