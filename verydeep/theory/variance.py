"""Variance of the signal after k of K residual units at the start: a law for each way of keeping branches small.

All take an input of variance 1, and branches that are uncorrelated with their input: the weights of their last layer
are drawn independently, with mean zero.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate


def accumulated_variance(branch_variances: Sequence[float], *, input_variance: float = 1.0) -> list[float]:
    """Variance before the first unit and after each: Var(h_{k+1}) = Var(h_k) + Var(F_k(h_k)).    (11.5)

    Source:  the chapter, Eq. 11.5

    >>> accumulated_variance([1.0, 2.0, 4.0])
    [1.0, 2.0, 4.0, 8.0]
    """
    return list(accumulate(branch_variances, initial=input_variance))


def unscaled_variance(unit: int, *, branch_gain: float = 1.0) -> float:
    """Variance after unit k of a stack without remedy: (1 + g)^k, which is 2^k where branches keep their input's size.

    Args:    unit: k, 0 for the input
             branch_gain: g = Var(F(h)) / Var(h). 1 for ReLU-W-ReLU-W with He's weights; 2 for W-ReLU-W, whose first
                 layer meets a signal that no ReLU has halved
    Source:  the chapter, section 3 and exercise 11.4

    >>> unscaled_variance(10), f"{unscaled_variance(50):.0e}"
    (1024.0, '1e+15')
    """
    return (1 + branch_gain) ** unit


def scaled_variance(unit: int, num_units: int, *, branch_gain: float = 1.0) -> float:
    """Variance after unit k where branches are multiplied by 1/sqrt(K): (1 + g/K)^k, below `scaled_variance_bound`.

    Args:    unit: k, 0 for the input
             num_units: K
             branch_gain: g, as in `unscaled_variance`
    Source:  the chapter, section 3 and exercise 11.4

    >>> round(scaled_variance(10, 10), 2), round(scaled_variance(50, 50), 2)
    (2.59, 2.69)
    """
    return (1 + branch_gain / num_units) ** unit


def scaled_variance_bound(*, branch_gain: float = 1.0) -> float:
    """What the variance after K units scaled by 1/sqrt(K) stays below, for every K: e^g.

    Source:  the chapter, section 3

    >>> round(scaled_variance_bound(), 3)
    2.718
    """
    return math.exp(branch_gain)


def normalized_variance(unit: int, *, branch_variance: float = 1.0) -> float:
    """Variance after unit k where each branch begins with a norm: 1 + k v, linear in depth.

    Args:    unit: k, 0 for the input
             branch_variance: v = Var(F(h)), the same for every unit, since its input is normalised
    Source:  the chapter, section 3; De and Smith 2020

    >>> normalized_variance(1), normalized_variance(50)
    (2.0, 51.0)
    """
    return 1 + unit * branch_variance


def zero_init_variance(unit: int) -> float:
    """Variance after unit k where branches start at zero: 1.

    Source:  the chapter, section 3

    >>> zero_init_variance(50)
    1.0
    """
    return 1.0


VARIANCE_LAWS: dict[str, Callable[[int, int], float]] = {
    "none": lambda unit, num_units: unscaled_variance(unit),
    "inverse_sqrt": scaled_variance,
    "norm": lambda unit, num_units: normalized_variance(unit),
    "zero_init": lambda unit, num_units: zero_init_variance(unit),
}
