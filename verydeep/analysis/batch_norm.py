"""Batch norms during an analysis: which they are, in which mode they are, and statistics taken anew."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from verydeep.analysis.unchanged import unchanged
from verydeep.data import Split

BATCH_NORMS = nn.modules.batchnorm._BatchNorm  # base class of torch's, ghost and synchronised batch norms


def batch_norms(model: nn.Module) -> dict[str, nn.modules.batchnorm._BatchNorm]:
    """The batch norms of a model that keep running statistics, by name."""
    named = model.named_modules()
    return {name: module for name, module in named if isinstance(module, BATCH_NORMS) and module.track_running_stats}


def batch_statistics(model: nn.Module) -> None:
    """Put a model into eval mode but for its batch norms, which use the batch's statistics: nothing random remains."""
    model.eval()
    for norm in batch_norms(model).values():
        norm.train()


@torch.no_grad()
def recalibrate(model: nn.Module, image_batches: Iterable[Tensor]) -> None:
    """Replace the running statistics by the mean of those of these batches, and leave the model in eval mode."""
    norms = batch_norms(model).values()
    momenta = [norm.momentum for norm in norms]
    batch_statistics(model)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
    for images in image_batches:
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


@contextmanager
def recalibrated(model: nn.Module, image_batches: Iterable[Tensor]) -> Iterator[None]:
    """Within it, a model is in eval mode with the statistics of these batches; afterwards it is as before.

    For a network at initialisation, whose running statistics are still 0 and 1.
    """
    with unchanged(model):
        recalibrate(model, image_batches)
        yield


def images_of(split: Split, batches: Iterable[Tensor], device: torch.device) -> Iterator[Tensor]:
    """The images of these samples, batch by batch, not augmented.

    Args:    batches: int64 (N,) each
    """
    return (images for images, _ in split.batches(batches, epoch=None, device=device))
