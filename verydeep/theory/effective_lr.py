"""Learning rate of weights whose scale does not matter, because a norm stands behind them.

f(a w) = f(w) for a > 0. So the gradient is orthogonal to w, and |grad f(w)| = G / |w| with G the gradient's norm at
w / |w|. A step of SGD with weight decay, w' = (1 - lr wd) w - lr grad f(w), then is a right triangle:

    |w'|^2 = (1 - lr wd)^2 |w|^2 + lr^2 G^2 / |w|^2,    tan(angle) = lr G / ((1 - lr wd) |w|^2)

Source:  the chapter, section 4; van Laarhoven 2017, section 2. He writes the penalty wd |w|^2, whose gradient is twice
ours.
"""

import math


def effective_lr(norm: float, *, lr: float) -> float:
    """Learning rate of the direction w / |w|: lr / |w|^2.

    Source:  van Laarhoven 2017, section 2

    >>> effective_lr(2.0, lr=0.1)
    0.025
    """
    return lr / norm**2


def step_angle(norm: float, *, lr: float, gradient_norm: float, weight_decay: float = 0.0) -> float:
    """Angle in radians by which one step turns w; for small steps lr G / |w|^2.

    Args:    norm: |w|
             gradient_norm: G, of the gradient at w / |w|

    >>> round(step_angle(1.0, lr=0.01, gradient_norm=1.0) / step_angle(10.0, lr=0.01, gradient_norm=1.0), 2)
    100.0
    """
    return math.atan2(lr * gradient_norm, (1 - lr * weight_decay) * norm**2)


def norm_after_step(norm: float, *, lr: float, gradient_norm: float, weight_decay: float = 0.0) -> float:
    """|w'| after one step; without weight decay it only grows.

    Args:    norm: |w|
             gradient_norm: G, of the gradient at w / |w|

    >>> norm_after_step(2.0, lr=1.0, gradient_norm=3.0)
    2.5
    """
    return math.hypot((1 - lr * weight_decay) * norm, lr * gradient_norm / norm)


def effective_lrs(norm: float, *, lr: float, gradient_norm: float, weight_decay: float, num_steps: int) -> list[float]:
    """lr / |w|^2 before the first step and after each, where G stays the same.

    >>> lrs = effective_lrs(10.0, lr=0.1, gradient_norm=1.0, weight_decay=0.01, num_steps=9999)
    >>> f"{lrs[0]:.4f} {lrs[-1]:.4f}"
    '0.0010 0.0447'
    """
    lrs = [effective_lr(norm, lr=lr)]
    for _ in range(num_steps):
        norm = norm_after_step(norm, lr=lr, gradient_norm=gradient_norm, weight_decay=weight_decay)
        lrs.append(effective_lr(norm, lr=lr))
    return lrs


def equilibrium_norm(*, lr: float, gradient_norm: float, weight_decay: float) -> float:
    """The norm that a step does not change: |w|^4 = lr G^2 / (wd (2 - lr wd)), about lr G^2 / (2 wd).

    Args:    weight_decay: wd, above 0

    >>> norm = equilibrium_norm(lr=0.1, gradient_norm=1.0, weight_decay=0.01)
    >>> abs(norm_after_step(norm, lr=0.1, gradient_norm=1.0, weight_decay=0.01) - norm) < 1e-12
    True
    """
    return (lr * gradient_norm**2 / (weight_decay * (2 - lr * weight_decay))) ** 0.25


def equilibrium_angle(*, lr: float, weight_decay: float) -> float:
    """Angle in radians of one step at the equilibrium: cos(angle) = 1 - lr wd, so about sqrt(2 lr wd), whatever G.

    >>> round(equilibrium_angle(lr=0.1, weight_decay=0.0005), 6), round(math.sqrt(2 * 0.1 * 0.0005), 6)
    (0.01, 0.01)
    """
    return math.acos(1 - lr * weight_decay)
