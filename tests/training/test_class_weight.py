"""Balanced weights: each class counts alike, an image counts 1 in the mean."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.class_weight import compute_class_weight

from verydeep.config import RunConfig
from verydeep.training.class_weight import balanced_weights, make_class_weights


@given(st.lists(st.integers(0, 5), min_size=1, max_size=50))
def test_they_are_scikit_learns(labels: list[int]):
    weights = balanced_weights(torch.tensor(labels), 6)
    present = sorted(set(labels))
    expected = compute_class_weight("balanced", classes=np.array(present), y=labels)
    torch.testing.assert_close(weights[present], torch.tensor(expected).float())
    assert all(weights[name] == 0 for name in set(range(6)) - set(present))
    torch.testing.assert_close(weights[labels].mean(), torch.tensor(1.0))


def test_none_unless_asked_for():
    labels, device = torch.tensor([0, 0, 1]), torch.device("cpu")
    assert make_class_weights(RunConfig().resolved(), labels, 2, device) is None
    asked = RunConfig(class_weights="balanced").resolved()
    torch.testing.assert_close(make_class_weights(asked, labels, 2, device), torch.tensor([0.75, 1.5]))
