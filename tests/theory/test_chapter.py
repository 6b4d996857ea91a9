"""Every exact number of the chapter that a closed form gives, to the digits printed. Ids are the claims'."""

import numpy as np
import pytest
import torch

from verydeep import theory


def float64(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


Z, SHIFTED = float64(2, 4, 6, 8), float64(1, 3, 5, 7)
TABLE = float64([2, 0, 4], [4, 2, 0], [6, 2, 4], [8, 4, 4])
BY_COLUMN = [[-1.342, -1.414, 0.577], [-0.447, 0, -1.732], [0.447, 0, 0.577], [1.342, 1.414, 0.577]]
BY_ROW = [[0, -1.225, 1.225], [1.225, 0, -1.225], [1.225, -1.225, 0], [1.414, -0.707, -0.707]]

# id: (what theory gives, what is printed, digits after the point)
CLAIMS = {
    "paths-3": (lambda: theory.paths_by_length(3), [1, 3, 3, 1], 0),
    "paths-total": (lambda: theory.num_paths(3), 8, 0),
    "chain-0.5": (lambda: theory.plain_chain([0.5] * 20), 9.5e-07, 8),
    "chain-0.9": (lambda: theory.plain_chain([0.9] * 20), 0.12, 2),
    "chain-1.1": (lambda: theory.plain_chain([1.1] * 20), 6.7, 1),
    "reschain+0.05": (lambda: theory.residual_chain([0.05] * 20), 2.65, 2),
    "reschain-0.05": (lambda: theory.residual_chain([-0.05] * 20), 0.36, 2),
    "var-growth-50": (lambda: theory.unscaled_variance(50), 1e15, -15),
    "bn-example-stats": (lambda: [theory.batch_norm(Z).mean, theory.batch_norm(Z).variance], [5, 5], 0),
    "bn-example": (lambda: theory.batch_norm(Z).normalized, [-1.342, -0.447, 0.447, 1.342], 3),
    "bn-example-affine": (lambda: theory.batch_norm(Z, gamma=2, beta=1).output, [-1.683, 0.106, 1.894, 3.683], 3),
    "bn-backward": (lambda: theory.batch_norm_backward(float64(1, 0, 0, 0), Z), [0.134, -0.179, -0.045, 0.089], 3),
    "table-bn": (lambda: theory.normalize(TABLE, "batch"), BY_COLUMN, 3),
    "table-ln": (lambda: theory.normalize(TABLE, "layer"), BY_ROW, 3),
    "rms": (lambda: theory.normalize(TABLE[:1], "rms"), [[0.775, 0, 1.549]], 3),
    "basic-256": (lambda: theory.basic_weights(256), 1179648, 0),
    "bottleneck-256-64": (lambda: theory.bottleneck_weights(256, 64), 69632, 0),
    "bottleneck-ratio": (lambda: theory.basic_weights(256) / theory.bottleneck_weights(256, 64), 17, 0),
    "fixup": (lambda: [theory.fixup_scale(54, m) for m in (2, 3)], [0.13608, 0.36889], 5),
    "ex11.1": (lambda: theory.batch_norm(SHIFTED).output, [-1.342, -0.447, 0.447, 1.342], 3),
    "ex11.2": (lambda: [theory.num_paths(4), theory.num_paths(4, length=2)], [16, 6], 0),
    "ex11.4-unscaled": (lambda: theory.unscaled_variance(10), 1024, 0),
    "ex11.4-scaled": (lambda: theory.scaled_variance(10, 10), 2.59, 2),
    "ex11.5": (lambda: theory.normalize(float64([1, 2, 3, 6]), "layer"), [[-1.069, -0.535, 0, 1.604]], 3),
    "ex11.6": (lambda: theory.bottleneck_weights(512, 128), 278528, 0),
    "ex11.7-positive": (lambda: theory.residual_chain([0.01] * 100), 2.70, 2),
    "ex11.7-negative": (lambda: theory.residual_chain([-0.01] * 100), 0.366, 3),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_number_is_as_printed(claim):
    compute, printed, digits = CLAIMS[claim]
    rounded = np.round(np.asarray(compute(), dtype=np.float64), digits)
    np.testing.assert_allclose(rounded, np.asarray(printed, dtype=np.float64), rtol=1e-12, atol=1e-12)


def test_exercise_11_5_has_the_mean_and_variance_of_its_answer():
    x = float64(1, 2, 3, 6)
    assert (x.mean().item(), x.var(correction=0).item()) == (3.0, 3.5)
