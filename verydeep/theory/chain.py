"""Chains of scalars: what a derivative becomes through many layers, without and with shortcuts."""

import math
from collections.abc import Sequence


def plain_chain(derivatives: Sequence[float]) -> float:
    """Derivative of a plain chain, the product of its layers' derivatives.

    Source:  the chapter, section 2

    >>> f"{plain_chain([0.5] * 20):.1e}"
    '9.5e-07'
    >>> round(plain_chain([0.9] * 20), 2), round(plain_chain([1.1] * 20), 1)
    (0.12, 6.7)
    """
    return math.prod(derivatives)


def residual_chain(branch_derivatives: Sequence[float]) -> float:
    """Derivative of a residual chain, the product of 1 + c_k: the scalar case of (11.4).

    Args:    branch_derivatives: c_1..c_K of the branches
    Source:  the chapter, Eq. 11.4 and exercise 11.7

    >>> round(residual_chain([0.05] * 20), 2), round(residual_chain([-0.05] * 20), 2)
    (2.65, 0.36)
    >>> round(residual_chain([0.01] * 100), 2), round(residual_chain([-0.01] * 100), 3)
    (2.7, 0.366)
    """
    return math.prod(1 + c for c in branch_derivatives)
