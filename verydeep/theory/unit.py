"""Numbers of residual units: their weights, Fixup's factor, survival under stochastic depth."""

from verydeep.errors import UsageError


def basic_weights(channels: int) -> int:
    """Weights of two 3x3 convolutions, 2 x 9 C^2; biases and norms not counted.

    Source:  the chapter, section 6

    >>> basic_weights(256)
    1179648
    """
    return 2 * 9 * channels**2


def bottleneck_weights(channels: int, inner_channels: int) -> int:
    """Weights of a 1x1, a 3x3 and a 1x1 convolution, C c + 9 c^2 + c C; biases and norms not counted.

    Source:  the chapter, section 6 and exercise 11.6

    >>> bottleneck_weights(256, 64), round(basic_weights(256) / bottleneck_weights(256, 64))
    (69632, 17)
    >>> bottleneck_weights(512, 128)
    278528
    """
    return channels * inner_channels + 9 * inner_channels**2 + inner_channels * channels


def fixup_scale(num_units: int, num_layers: int) -> float:
    """Factor a on the first m - 1 layers of a branch for which a step of size lr changes the output by about lr.

    The last layer is zero; its gradient carries the other layers' product, a^(m-1), and so does what its step adds to
    the output. L branches together change it by lr L a^(2m-2), which is lr where a = L^(-1/(2m-2)).

    Args:    num_units: L
             num_layers: m, at least 2
    Raises:  UsageError: if m is 1, for which no factor exists
    Source:  Zhang et al. 2019, section 3

    >>> round(fixup_scale(54, 2), 5), round(fixup_scale(54, 3), 5)
    (0.13608, 0.36889)
    """
    if num_layers < 2:
        raise UsageError(f"num_layers {num_layers}: Fixup divides by 2m-2, which needs at least 2 layers a branch")
    return (1 / num_units) ** (1 / (2 * num_layers - 2))


def survival_probabilities(num_units: int, *, last: float) -> list[float]:
    """Probability that each unit is kept, falling linearly: p_l = 1 - l/L (1 - p_L).

    Args:    last: p_L, of the last unit
    Source:  Huang et al. 2016, Eq. 4

    >>> p = survival_probabilities(54, last=0.5)
    >>> round(p[0], 6), p[-1], round(sum(p), 2)
    (0.990741, 0.5, 40.25)
    """
    return [1 - unit / num_units * (1 - last) for unit in range(1, num_units + 1)]
