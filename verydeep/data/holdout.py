"""Stratified hold-outs: which samples leave the training set, the same for the same seed.

The validation split, and the test sets of data that come without one, are drawn here.
"""

import numpy as np
import torch
from torch import Tensor

from verydeep.data.seed import HOLD_OUT, generator


def fifth_of_each(sizes: np.ndarray) -> np.ndarray:
    """About 20 % of each class: at least 1 where 1 is left, else none.

    >>> fifth_of_each(np.array([1, 2, 10, 13])).tolist()
    [0, 1, 2, 3]
    """
    return np.minimum(np.maximum(np.rint(sizes / 5).astype(np.int64), 1), np.maximum(sizes - 1, 0))


def in_proportion(sizes: np.ndarray, total: int) -> np.ndarray:
    """`total` shared among classes in proportion to their sizes, largest remainders first, 1 of each class staying.

    Args:    sizes: samples of each class, int64 (num_classes,)
             total: at most the sum of the sizes less one for each class that is not empty

    >>> in_proportion(np.array([60, 30, 1]), 10).tolist()
    [7, 3, 0]
    """
    most = np.maximum(sizes - 1, 0)
    assert total <= most.sum()
    share = total * sizes / max(sizes.sum(), 1)
    counts = np.minimum(share.astype(np.int64), most)
    while (missing := total - counts.sum()) > 0:
        open_classes = np.flatnonzero(counts < most)
        by_remainder = open_classes[np.argsort(counts[open_classes] - share[open_classes], kind="stable")]
        counts[by_remainder[:missing]] += 1
    return counts


def hold_out(labels: Tensor, counts: np.ndarray, *, seed: int) -> tuple[Tensor, Tensor]:
    """So many samples of each class, drawn at random.

    Args:    labels: int64 (N,)
             counts: samples to hold out of each class, int64 (num_classes,)
    Returns: rows that stay and rows held out, int64 each, ascending
    """
    shuffled = torch.randperm(len(labels), generator=generator(HOLD_OUT, seed))
    by_class = shuffled[torch.argsort(labels[shuffled], stable=True)]
    sorted_labels = labels[by_class]
    rank = torch.arange(len(labels)) - torch.searchsorted(sorted_labels, sorted_labels)  # within the class
    held = rank < torch.from_numpy(counts)[sorted_labels]
    return by_class[~held].sort().values, by_class[held].sort().values


def class_sizes(labels: Tensor, num_classes: int) -> np.ndarray:
    """Samples of each class, int64 (num_classes,)."""
    return torch.bincount(labels, minlength=num_classes).numpy()
