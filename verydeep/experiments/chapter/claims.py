"""The claims of the chapter that a program can check: what, published value, and the last digit printed."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """One claim of the chapter.

    Args:    id: its name in results
             kind: exact, stochastic or trained
             section: of the chapter, a number, `notes` or `exercises`
             what: in words
             published: the printed value; `identity` or `figure` where it is no number
             digit: the unit of the last digit printed, of an exact number
    """

    id: str
    kind: str
    section: str
    what: str
    published: Any
    digit: Any = None


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "fig11.1-shallow",
        "stochastic",
        "1",
        "correlation of neighbouring derivatives, shallow network, mean over ten",
        0.98,
    ),
    Claim("fig11.1-plain24", "stochastic", "1", "the same, plain network of 24 layers", 0.9),
    Claim("fig11.1-plain50", "stochastic", "1", "the same, 50 layers", 0.7),
    Claim("fig11.1-plain100", "stochastic", "1", "the same, 100 layers", 0.5),
    Claim(
        "fig11.1-residual100",
        "stochastic",
        "1",
        "the same, residual network of 100 units, branches scaled by 1/sqrt(K)",
        0.97,
    ),
    Claim("paths-3", "exact", "2", "paths through 3 units by length", [1, 3, 3, 1], 1),
    Claim("paths-total", "exact", "2", "paths through 3 units", 8, 1),
    Claim(
        "unravel",
        "exact",
        "2",
        "a network is its unravelled sum (11.2), its Jacobian the sum over all paths (11.4)",
        "identity",
    ),
    Claim("chain-0.5", "exact", "2", "plain chain of 20 layers, derivative 0.5", 9.5e-07, 1e-08),
    Claim("chain-0.9", "exact", "2", "derivative 0.9", 0.12, 0.01),
    Claim("chain-1.1", "exact", "2", "derivative 1.1", 6.7, 0.1),
    Claim("reschain+0.05", "exact", "2", "residual chain of 20 units, branch derivative 0.05", 2.65, 0.01),
    Claim("reschain-0.05", "exact", "2", "branch derivative -0.05", 0.36, 0.01),
    Claim(
        "var-growth-50", "exact", "3", "variance growth over 50 unscaled units", 1000000000000000.0, 1000000000000000.0
    ),
    Claim("fig11.2-plain-1", "stochastic", "3", "variance after 1 unit, no remedy", 2.0),
    Claim("fig11.2-plain-10", "stochastic", "3", "after 10 units", 1490),
    Claim("fig11.2-plain-50", "stochastic", "3", "after 50 units", 8000000000000000.0),
    Claim("fig11.2-scaled-50", "stochastic", "3", "variance after 50 units, branches scaled by 1/sqrt(K)", 2.6),
    Claim("fig11.2-norm-1", "stochastic", "3", "variance after 1 unit, branches begin with batch norm", 2.1),
    Claim("fig11.2-norm-50", "stochastic", "3", "after 50 units", 48),
    Claim("bn-example-stats", "exact", "4", "batch (2, 4, 6, 8): mean and variance", [5, 5], 1),
    Claim("bn-example", "exact", "4", "normalised", [-1.342, -0.447, 0.447, 1.342], 0.001),
    Claim("bn-example-affine", "exact", "4", "with gamma 2, beta 1", [-1.683, 0.106, 1.894, 3.683], 0.001),
    Claim(
        "bn-backward",
        "exact",
        "4",
        "gradient through batch norm (11.7) at z = (2, 4, 6, 8), g = (1, 0, 0, 0)",
        [0.134, -0.179, -0.045, 0.089],
        0.001,
    ),
    Claim(
        "bn-scale-invariance",
        "exact",
        "4",
        "weights into a norm scaled by a: same output, gradient over a, angle of a step over a squared",
        "identity",
    ),
    Claim(
        "table-bn",
        "exact",
        "5",
        "batch norm of the 4 x 3 table",
        [[-1.342, -1.414, 0.577], [-0.447, 0, -1.732], [0.447, 0, 0.577], [1.342, 1.414, 0.577]],
        0.001,
    ),
    Claim(
        "table-ln",
        "exact",
        "5",
        "layer norm of the 4 x 3 table",
        [[0, -1.225, 1.225], [1.225, 0, -1.225], [1.225, -1.225, 0], [1.414, -0.707, -0.707]],
        0.001,
    ),
    Claim("rms", "exact", "5", "RMSNorm of (2, 0, 4)", [0.775, 0, 1.549], 0.001),
    Claim("fig11.3", "exact", "5", "cells that share statistics, found by moving one", "figure"),
    Claim("basic-256", "exact", "6", "weights of two 3x3 convolutions on 256 channels", 1179648, 1),
    Claim("bottleneck-256-64", "exact", "6", "weights of a 256-64-256 bottleneck", 69632, 1),
    Claim("bottleneck-ratio", "exact", "6", "times fewer", 17, 1),
    Claim("resnet50-params", "exact", "6", "parameters of ResNet-50, under a fifth of VGG-16", 25600000.0, 100000.0),
    Claim(
        "preact-sum",
        "exact",
        "6",
        "pre-activation: a later signal is an earlier one plus the branches between; not so in the original unit",
        "identity",
    ),
    Claim(
        "corr-residual",
        "stochastic",
        "7",
        "the residual network keeps the correlation of a shallow one (see fig11.1)",
        0.97,
    ),
    Claim(
        "veit-lesion",
        "trained",
        "7",
        "one unit deleted: a residual network hardly changes, a plain one breaks",
        "figure",
    ),
    Claim(
        "veit-paths",
        "trained",
        "7",
        "layers of the paths that carry most of the gradient in a 110-layer network",
        [10, 34],
    ),
    Claim("li-landscape", "trained", "7", "loss surface: rough without shortcuts, smooth with them", "figure"),
    Claim("ics", "trained", "4", "random shift and scale after each norm at each step do not hurt training", "figure"),
    Claim("bn-small-batch", "trained", "4", "small batches hurt batch norm, not group norm", "figure"),
    Claim(
        "bn-larger-lr",
        "trained",
        "4",
        "batch norm is stable at learning rates where the plain network diverges",
        "figure",
    ),
    Claim(
        "degradation",
        "trained",
        "1",
        "a deeper plain network has higher training error; with shortcuts it does not",
        "figure",
    ),
    Claim(
        "fixup", "exact", "notes", "Fixup's factor for 54 units of two and of three layers", [0.13608, 0.36889], 1e-05
    ),
    Claim(
        "norm-free",
        "trained",
        "notes",
        "without norms, scaled weight standardisation and adaptive clipping train about as well as batch norm",
        "figure",
    ),
    Claim("ex11.1", "exact", "exercises", "batch norm of (1, 3, 5, 7)", [-1.342, -0.447, 0.447, 1.342], 0.001),
    Claim("ex11.2", "exact", "exercises", "paths through 4 units; of length two", [16, 6], 1),
    Claim("ex11.3", "exact", "exercises", "batch norm of a z + c is that of z", "identity"),
    Claim("ex11.4", "exact", "exercises", "growth over 10 branches: unscaled, scaled", [1024, 2.59], [1, 0.01]),
    Claim("ex11.5", "exact", "exercises", "layer norm of (1, 2, 3, 6)", [-1.069, -0.535, 0, 1.604], 0.001),
    Claim("ex11.6", "exact", "exercises", "weights of a 512-128-512 bottleneck", 278528, 1),
    Claim("ex11.7", "exact", "exercises", "residual chain of 100, c = 0.01 and -0.01", [2.7, 0.366], [0.01, 0.001]),
    Claim("depth-1202", "trained", "notes", "1,202 layers fit the training set and test worse than 110", "figure"),
    Claim(
        "depth-width", "trained", "notes", "at equal cost, very deep and narrow against wider and shallower", "figure"
    ),
    Claim("bn-init", "trained", "4", "batch norm makes training less sensitive to the initial scale", "figure"),
    Claim("bn-mismatch", "trained", "4", "training and prediction compute different functions", "figure"),
    Claim("bn-bias", "exact", "4", "a bias before batch norm changes nothing and has no gradient", "identity"),
    Claim("bn-fold", "exact", "4", "at prediction batch norm folds into the weights before it", "identity"),
    Claim("bn-noise", "trained", "4", "batch statistics add noise that regularises", "figure"),
)

BY_ID = {claim.id: claim for claim in CLAIMS}
