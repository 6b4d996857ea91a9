"""Weights of the classes in the training loss, for data in which some classes are rare."""

import torch
from torch import Tensor

from verydeep.config import RunConfig


def balanced_weights(labels: Tensor, num_classes: int) -> Tensor:
    """w_c = N / (K n_c) for N images, n_c of them of class c, and K classes that have any; 0 for those that have none.

    The mean weight of an image is 1, so learning rates keep their meaning.

    Args:    labels: int64 (N,)
    Returns: float32 (num_classes,)

    >>> balanced_weights(torch.tensor([0, 0, 0, 2]), 3).tolist()
    [0.6666666865348816, 0.0, 2.0]
    """
    counts = torch.bincount(labels, minlength=num_classes)
    weights = len(labels) / ((counts > 0).sum() * counts.clamp(min=1))
    return torch.where(counts > 0, weights, 0.0).float()


def make_class_weights(config: RunConfig, labels: Tensor, num_classes: int, device: torch.device) -> Tensor | None:
    """What a config asks for; None if all images count alike."""
    return balanced_weights(labels, num_classes).to(device) if config.class_weights == "balanced" else None
