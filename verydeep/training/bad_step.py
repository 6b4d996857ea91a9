"""Where a step that changed nothing went wrong: `locate`, for the line that names it. `Run` calls it."""

from collections.abc import Iterable

import torch
from torch import Tensor

from verydeep.nn.norm import local_batch_norm
from verydeep.probe import first_nonfinite
from verydeep.training.state import TrainState
from verydeep.training.step import autocast, logits_of


def locate(state: TrainState, micro_batches: Iterable[tuple[Tensor, Tensor]], *, precision: str) -> str | None:
    """The first site of NaN or inf in a step, by running it again under the probe; buffers stay as they were.

    Args:    micro_batches: the step's (images (N, C, H, W), labels), this process's
    Returns: None if the weights have moved since, and all is finite now
    """

    def forward(images: Tensor) -> Tensor:
        with autocast(state.world.device, precision):
            return logits_of(state.model(images))

    site = None
    state.buffers.save()
    with local_batch_norm(state.model):
        for images, labels in micro_batches:
            site = site or first_nonfinite(state.model, images, labels, forward=forward)
    state.buffers.restore_if(torch.tensor(True, device=state.world.device))
    return site
