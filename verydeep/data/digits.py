"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, always at hand."""

from pathlib import Path

import numpy as np
import torch

from verydeep.data.holdout import class_sizes, fifth_of_each, hold_out
from verydeep.data.source import Labelled, Source

_SPLIT_SEED = 0  # not the run's: every run has the same test set


def load_digits(root: Path) -> Source:
    """The digits, values 0..16 scaled to 0..255, with a fifth of each class as the test set; `root` is not read."""
    from sklearn.datasets import load_digits as load_sklearn_digits

    values, labels = load_sklearn_digits(return_X_y=True)
    pixels = np.rint(values * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    everything = Labelled(torch.from_numpy(pixels), torch.from_numpy(labels).long())
    counts = fifth_of_each(class_sizes(everything.labels, 10))
    train, test = (everything.take(rows) for rows in hold_out(everything.labels, counts, seed=_SPLIT_SEED))
    return Source(tuple("0123456789"), train, None, test, channels=1, flip=False)
