"""The learning-rate range test: one short training while the rate rises. `verydeep train --find-lr` calls it."""

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from verydeep.config import RunConfig
from verydeep.data import Data
from verydeep.errors import UsageError
from verydeep.training.clock import Clock
from verydeep.training.distributed import joined
from verydeep.training.fit import naming_memory
from verydeep.training.loop import own_random_state
from verydeep.training.reporter import Reporter
from verydeep.training.result import command_line
from verydeep.training.run import Run
from verydeep.versions import versions

LOWEST, HIGHEST = 1e-7, 10.0
LEAST_STEPS = 20
DIVERGED = 4.0  # times the lowest smoothed loss


@dataclass(frozen=True)
class LrCurve:
    """The training loss while the learning rate rises, and what it suggests.

    Args:    lrs: of each step taken, rising
             losses: mean loss of each step's images, before the step
             smoothed: their averages, see `smooth`, losses above those of the first tenth counting as these
             steepest_lr: where the smoothed loss falls fastest over log lr; None if it falls nowhere
             minimum_lr: where it is lowest; None if it falls nowhere
             diverged: whether the test ended before the highest rate
             facts: what it was measured with
    """

    lrs: list[float]
    losses: list[float]
    smoothed: list[float]
    steepest_lr: float | None
    minimum_lr: float | None
    diverged: bool
    facts: dict[str, Any]

    @property
    def suggested_lr(self) -> float | None:
        """The rate of the steepest fall, to two digits."""
        return None if self.steepest_lr is None else float(f"{self.steepest_lr:.1e}")

    @property
    def tenth_lr(self) -> float | None:
        """A tenth of the rate at the minimum, to two digits."""
        return None if self.minimum_lr is None else float(f"{self.minimum_lr / 10:.1e}")

    def summary(self) -> str:
        """What it suggests, in a line."""
        if self.suggested_lr is None:
            return f"no rate lowered the loss{f' up to {self.lrs[-1]:.2g}' if self.lrs else ''}"
        return (
            f"suggested lr {self.suggested_lr:g}, where the loss falls fastest; by another rule {self.tenth_lr:g}, "
            f"a tenth of {self.minimum_lr:.2g}, where it is lowest"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values: the fields, and both suggestions."""
        own = {"suggested_lr": self.suggested_lr, "tenth_lr": self.tenth_lr}
        return own | {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page with the curve.

        Raises:  RunError: if the file cannot be written.
        """
        from verydeep.training.find_lr_page import write_page  # altair takes a second to import

        text = self.summary() + (". The loss diverged." if self.diverged else ".")
        write_page(self.lrs, {"each step": self.losses, "smoothed": self.smoothed}, text, self.facts, Path(path))


def find_lr(
    config: RunConfig,
    model: nn.Module | None = None,
    *,
    steps: int = 100,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    data: Data | None = None,
    reporter: Reporter | None = None,
) -> LrCurve:
    """Train while the rate rises from `lowest` to `highest`, the same factor each step, until the loss diverges.

    The steps are the first ones of the run that the config declares, but for their rates: its network, data, batches,
    optimizer and seed. It has diverged at a non-finite loss, or once an average of the last losses is four times its
    lowest.

    Nothing is written. Suggested is the rate at which the smoothed loss falls fastest over log lr; another rule is a
    tenth of the rate at which it is lowest.

    Args:    steps: at least 20
             lowest, highest: rates, above 0; under LARS, of lr times its trust coefficient
             model, data, reporter: as for `train`
    Returns: the curve; the same for the same seed, on the same CPU with as many threads
    Raises:  UsageError: if the config cannot be carried out.
    Source:  Smith 2017 (Cyclical Learning Rates), section 3.3, for the test; Gugger 2018 (How Do You Find A Good
             Learning Rate) for the exponential rise, the end at four times the lowest loss and the tenth of the
             minimum; the steepest fall is `steep` of fastai's `lr_find`
    Differs: the curve is smoothed from both sides, so that it lags behind no rate, and without what lies above its
             start, so that a divergence leaves no trace in what came before it

    >>> find_lr(RunConfig(), steps=5)
    Traceback (most recent call last):
    verydeep.errors.UsageError: find_lr_steps 5: must be at least 20
    """
    if steps < LEAST_STEPS:
        raise UsageError(f"find_lr_steps {steps}: must be at least {LEAST_STEPS}")
    if not 0 < lowest < highest < math.inf:
        raise UsageError(f"lowest {lowest:g} and highest {highest:g}: must be rates above 0, the lowest first")
    config = dataclasses.replace(config.resolved(), steps=steps, epochs=None, early_stop=None, logger="tensorboard")
    unit = 1 / config.lars_trust if config.optimizer == "lars" else 1.0
    rates = [unit * lowest * (highest / lowest) ** (step / (steps - 1)) for step in range(steps)]
    began = time.monotonic()
    with joined(config.device) as world, own_random_state(world), torch.enable_grad():
        run = Run(config, Path("."), world, model, data, reporter=reporter)
        with naming_memory(f"batch_size {run.plan.batch_size}", run.plan.batch_size), closing(run.reporter):
            losses = _until_divergence(_losses(run, rates), width=steps / 10)
    lrs = rates[: len(losses)]
    first = losses[: steps // 10]
    smoothed = smooth(losses, width=max(steps / 20, 3), most=float(np.mean(first)) if first else math.inf)
    steepest, minimum = suggest(lrs, losses, smoothed, skip=steps // 10)
    facts = {
        "model": config.model,
        "data": run.data.name,
        "optimizer": config.optimizer,
        "batch_size": run.plan.batch_size * run.plan.accumulate,
        "seed": config.seed,
        "steps": steps,
        "seconds": time.monotonic() - began,
        "device": str(world.device),
        "versions": versions(),
        "command": command_line(),
    }
    return LrCurve(lrs, losses, smoothed, steepest, minimum, diverged=len(losses) < steps, facts=facts)


def _losses(run: Run, rates: Sequence[float]) -> Iterator[float]:
    """Take a step at each rate; the mean loss of its images, all processes', before it: NaN if the step was bad."""
    run.prepare()
    run.reporter.start(done=0, total=len(rates))
    clock = Clock(0.0)
    while run.progress.step < len(rates):
        for batches in run.epoch_batches():
            lr = rates[run.progress.step]
            run.take_step(batches, lr=lr)
            run.progress.step += 1
            loss, errors, images, bad_steps = run.world.sum(run.state.tally.sums[:4]).tolist()
            run.state.tally.reset()
            mean = math.nan if bad_steps else loss / images
            done = run.progress.step
            if done % run.config.log_steps == 0 and not bad_steps:
                values = {"epoch": done / run.plan.steps_per_epoch, "lr": lr, "loss": mean}
                values |= {"error_percent": 100 * errors / images}
                values |= {"images_per_second": run.config.log_steps * images / clock.lap()}
                run.reporter.log(done, values)
            yield mean


def _until_divergence(losses: Iterable[float], *, width: float) -> list[float]:
    """The losses up to where they diverge: one is not finite, or the average of what came last is far above its lowest.

    Args:    width: steps over which the weights of the average fall by e

    >>> _until_divergence([2.0, 1.0, 9.0, 1.0], width=0.1)
    [2.0, 1.0, 9.0]
    """
    seen: list[float] = []
    total = weight = 0.0
    lowest = math.inf
    decay = math.exp(-1 / width)
    for loss in losses:
        if not math.isfinite(loss):
            break
        seen.append(loss)
        total, weight = decay * total + loss, decay * weight + 1
        lowest = min(lowest, total / weight)
        if total / weight > DIVERGED * lowest:
            break
    return seen


def smooth(losses: Sequence[float], *, width: float, most: float = math.inf) -> list[float]:
    """s_t = sum_i w_ti min(l_i, most) / sum_i w_ti, w_ti = exp(-|t - i| / width).

    An average of both sides, which lags behind no rate; the bound keeps a divergence out of what came before it.

    >>> smooth([3.0, 1.0, 9.0], width=0.01, most=4.0)
    [3.0, 1.0, 4.0]
    """
    steps = np.arange(len(losses))
    weights = np.exp(-abs(steps[:, None] - steps) / width)  # (steps, steps)
    return (weights @ np.minimum(losses, most) / weights.sum(1)).tolist()


def suggest(
    lrs: Sequence[float], losses: Sequence[float], smoothed: Sequence[float], *, skip: int
) -> tuple[float | None, float | None]:
    """The rates at which the smoothed loss falls fastest over log lr, and is lowest.

    Args:    skip: first steps, at rates too low to change anything
    Returns: None and None if the loss falls nowhere by more than those first losses differ (one standard deviation,
                 or a hundredth)

    >>> suggest([1e-3, 1e-2, 1e-1, 1.0], [3.0, 2.9, 1.0, 5.0], [3.0, 2.9, 1.0, 5.0], skip=1)
    (0.01, 0.1)
    """
    if len(lrs) <= skip + 1:
        return None, None
    lowest = skip + int(np.argmin(smoothed[skip:]))
    start = np.mean(losses[:skip])
    if lowest == skip or smoothed[lowest] >= start - max(np.std(losses[:skip]), 0.01 * start):
        return None, None
    slopes = np.gradient(smoothed, np.log(lrs))
    return lrs[skip + int(np.argmin(slopes[skip : lowest + 1]))], lrs[lowest]
