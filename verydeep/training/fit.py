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
def naming_memory(what: str, batch_size: int | None = None) -> Iterator[None]:
    """Turn an allocation that fails into one line that says what wanted it, and what to try.

    Args:    batch_size: of the step, if it is a training step
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one too
        texts = ("can't allocate memory", "not enough memory", "out of memory")
        if not isinstance(error, torch.OutOfMemoryError) and not any(text in str(error) for text in texts):
            raise
        advice = "give less of it"
        if batch_size is not None:
            advice = (
                f"the last checkpoint is intact. Try a new run with --batch-size {max(1, batch_size // 2)} "
                "--accumulate 2, or a smaller --image-size"
            )
        raise RunError(f"out of memory at {what}; {advice}") from error
