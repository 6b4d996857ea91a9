"""Learning rate as a function of (step, total): any total from 1, no state to resume. Torch-free."""

import math
from collections.abc import Callable, Sequence

from verydeep.config import RunConfig
from verydeep.errors import resolve

Curve = Callable[[int, int], float]


def lr_at(step: int, total: int, config: RunConfig) -> float:
    """The learning rate of one step under a resolved config.

    Args:    step: 0 to total - 1
             total: steps of the whole run
    """
    assert config.lr is not None and config.schedule is not None
    return resolve("schedule", config.schedule, CURVES)(config)(step, total)


def piecewise(
    lr: float, *, milestones: Sequence[float], drop: float, warmup: float = 0.0, warmup_lr: float | None = None
) -> Curve:
    """lr, times `drop` from each milestone on; before, a warm-up at `warmup_lr` (none: a linear rise).

    Args:    milestones, warmup: fractions of the run
    Source:  He et al. 2016, appendix: 0.01 for 400 of 64,000 steps, then 0.1, divided by 10 at 32k and 48k

    >>> curve = piecewise(0.1, milestones=(0.5, 0.75), drop=0.1, warmup=400 / 64000, warmup_lr=0.01)
    >>> [round(curve(step, 64000), 6) for step in (0, 399, 400, 31999, 32000, 48000)]
    [0.01, 0.01, 0.1, 0.1, 0.01, 0.001]
    """

    def curve(step: int, total: int) -> float:
        rise = _warm(step, total, warmup)
        if rise is not None:
            return lr * rise if warmup_lr is None else warmup_lr
        return lr * drop ** sum(step >= round(fraction * total) for fraction in milestones)

    return curve


def one_cycle(lr: float, *, warmup: float) -> Curve:
    """Cosine from lr / 25 up to lr over the `warmup` fraction, then down to lr / 250,000; equals torch's OneCycleLR.

    Source:  Smith and Topin 2018

    >>> [round(one_cycle(0.1, warmup=0.3)(step, 10), 4) for step in (0, 2, 9)]
    [0.004, 0.1, 0.0]
    """

    def curve(step: int, total: int) -> float:
        peak = max(warmup * total - 1, 0)
        if total == 2:
            peak = round(peak)  # between the two steps, none would come near it
        if step < peak:
            return _cosine(lr / 25, lr, step / peak)
        if total - 1 <= peak:
            return lr
        return _cosine(lr, lr / 25e4, (step - peak) / (total - 1 - peak))

    return curve


def decay(lr: float, *, warmup: float, shape: Callable[[float], float]) -> Curve:
    """A linear rise over the `warmup` fraction, then lr times `shape` of the fraction of the rest, 0 to below 1."""

    def curve(step: int, total: int) -> float:
        rise = _warm(step, total, warmup)
        if rise is not None:
            return lr * rise
        start = _warmup_steps(total, warmup)
        return lr * shape((step - start) / (total - start))

    return curve


def polynomial(lr: float, *, warmup: float, power: float) -> Curve:
    """lr (1 - f)^power, f the fraction of the run after its warm-up; equals torch's PolynomialLR without one.

    Args:    power: 1 is the linear decay
    Source:  You, Gitman and Ginsburg 2017 take power 2, with LARS; Chen et al. 2017 (DeepLab) take 0.9

    >>> [round(polynomial(0.1, warmup=0.0, power=2.0)(step, 10), 4) for step in (0, 5, 9)]
    [0.1, 0.025, 0.001]
    """
    return decay(lr, warmup=warmup, shape=lambda fraction: (1 - fraction) ** power)


def _warm(step: int, total: int, warmup: float) -> float | None:
    """The fraction of lr at a step of the warm-up, above 0; None once it is over."""
    steps = _warmup_steps(total, warmup)
    return (step + 1) / (steps + 1) if step < steps else None


def _warmup_steps(total: int, warmup: float) -> int:
    """Steps that warm up; the last step of a run is never one."""
    return min(round(warmup * total), total - 1)


def _cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * fraction)) / 2


def _decay_schedule(shape: Callable[[float], float]) -> Callable[[RunConfig], Curve]:
    return lambda config: decay(config.lr or 0.0, warmup=config.warmup or 0.0, shape=shape)


CURVES: dict[str, Callable[[RunConfig], Curve]] = {
    "steps": lambda config: piecewise(
        config.lr or 0.0,
        milestones=config.milestones or (),
        drop=1.0 if config.lr_drop is None else config.lr_drop,
        warmup=config.warmup or 0.0,
        warmup_lr=config.warmup_lr,
    ),
    "one_cycle": lambda config: one_cycle(config.lr or 0.0, warmup=config.warmup or 0.0),
    "cosine": _decay_schedule(lambda fraction: _cosine(1.0, 0.0, fraction)),
    "linear": _decay_schedule(lambda fraction: 1 - fraction),
    "polynomial": lambda config: polynomial(config.lr or 0.0, warmup=config.warmup or 0.0, power=config.schedule_power),
    "constant": _decay_schedule(lambda fraction: 1.0),
}
