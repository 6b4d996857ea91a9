"""Is a user's own module a classifier of these images: asked once, before the first step."""

import torch
from torch import nn

from verydeep.errors import UsageError, described
from verydeep.nn.mode import evaluating
from verydeep.training.step import logits_of


@torch.no_grad()
def check_classifier(
    model: nn.Module, name: str, image_shape: tuple[int, ...], *, num_classes: int, device: torch.device
) -> None:
    """Call the module, in eval mode, on two images of zeros.

    Args:    name: what errors call it
             image_shape: (C, H, W)
    Raises:  UsageError: if it fails, gives no logits (N, num_classes), or has nothing to train.
    """
    shape = (2, *image_shape)
    try:
        with evaluating(model):
            output = model.to(device)(torch.zeros(shape, device=device))
        logits = logits_of(output)
    except Exception as error:  # the user's code may do anything
        raise UsageError(f"model {name}: fails on images {shape}: {described(error)}") from error
    if logits.shape != (2, num_classes):
        raise UsageError(
            f"model {name}: on images {shape} must return logits (2, {num_classes}), one a class; returns "
            f"{tuple(logits.shape)}"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"model {name}: has no parameter to train")
