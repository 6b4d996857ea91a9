"""Profiles over depth that several rules look at: signal and gradient along what every path to the output passes."""

import math

from verydeep.analysis.reading import Reading


def signal_profile(reading: Reading) -> list[tuple[int, float]]:
    """(node, mean square) in running order: what goes into each weight of the trunk but the first, and the sums.

    What goes into a weight is behind its norm, if there is one: the scale of a weight's own output does not matter
    where a norm follows. The last weight's output, the logits, has none behind it and is not looked at here.
    """
    trunk = [reading.graph.nodes[i].inputs[0] for i in reading.trunk[1:]]
    places = sorted({*(_read_at(reading, i) for i in trunk), *(addition.node for addition in reading.additions)})
    profile = [(i, reading.value(i, "mean_square")) for i in places if i >= 0]
    return [(i, value) for i, value in profile if value is not None and math.isfinite(value)]


def _read_at(reading: Reading, index: int) -> int:
    """The node itself, or the nearest before it at which a signal was read."""
    while index and reading.value(index, "mean_square") is None:
        index = reading.graph.nodes[index].inputs[0]
    return index or -1


def gradient_profile(reading: Reading) -> list[tuple[int, float]]:
    """(node, norm of the gradient) in running order: weights of the trunk and sums."""
    places = sorted({*reading.trunk, *(addition.node for addition in reading.additions)})
    return [(i, reading.gradients[i]) for i in places if i in reading.gradients]


def log_slope(reading: Reading, profile: list[tuple[int, float]]) -> float:
    """Least-squares slope of ln(value) over weighted layers: ln of the factor a layer."""
    points = [(reading.graph.nodes[i].most, math.log(value)) for i, value in profile if 0 < value < math.inf]
    n = len(points)
    mean_x, mean_y = (sum(values) / max(1, n) for values in (zip(*points, strict=True) if points else ((0,), (0,))))
    below = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / below if below else 0.0


def shortest_path(reading: Reading) -> int:
    """Weighted layers on the shortest path from input to output."""
    outputs = reading.graph.outputs
    return reading.graph.nodes[outputs[0]].fewest if outputs else 0


def site(reading: Reading, index: int) -> str:
    return reading.graph.nodes[index].site
