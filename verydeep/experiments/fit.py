"""Training inside an experiment: a run as any other, kept in memory."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from verydeep.config import RunConfig
from verydeep.errors import Diverged
from verydeep.experiments.data import small_data
from verydeep.training.distributed import World, choose_device
from verydeep.training.evaluate import evaluate
from verydeep.training.reporter import SilentReporter
from verydeep.training.run import Run


@dataclass(frozen=True)
class Fit:
    """A network after its training.

    Args:    model: in training mode, as the last step left it
             curve: (step, training loss) at each log line; the loss is None where no step was finite
             train_error_percent, test_error_percent: without augmentation; 100 (1 - 1/classes) where it diverged
             train_loss: mean over the last log line; None where it diverged
             diverged: whether the run was stopped for non-finite steps
    """

    model: nn.Module
    curve: list[tuple[int, float | None]]
    train_error_percent: float
    test_error_percent: float
    train_loss: float | None
    diverged: bool

    def to_dict(self) -> dict[str, Any]:
        """What is kept of it: everything but the model."""
        return {name: value for name, value in vars(self).items() if name != "model"}


def fit(
    config: RunConfig,
    *,
    model: nn.Module | None = None,
    around: Callable[[nn.Module], AbstractContextManager] = nullcontext,
) -> Fit:
    """Train by a config, on the CPU or the device that it names, writing nothing.

    A run that stops for non-finite steps is a result, not an error.

    Args:    model: instead of the config's
             around: from the model to a context in which it is trained, one that changes its norms for example
    """
    config = config.resolved()
    data = small_data(config.data, config.image_size, config.max_images)
    with torch.random.fork_rng(devices=[]):
        world = World(rank=0, size=1, device=choose_device(config.device))
        run = Run(config, Path("."), world, model, data, reporter=SilentReporter())
        try:
            with around(run.state.model):
                finished = run.carry_out(None).finished
            diverged = False
        except Diverged:
            finished = diverged = True
    if not finished:  # a signal asked the run to stop: half a training is no measurement
        raise KeyboardInterrupt
    lines = [line for line in run.lines if line["kind"] == "train"]
    chance = 100 * (1 - 1 / len(data.classes))
    assert data.train is not None and data.test is not None
    return Fit(
        model=run.state.model,
        curve=[(line["step"], line["loss"]) for line in lines],
        train_error_percent=chance if diverged else evaluate(run.state.model, data.train).error_percent,
        test_error_percent=chance if diverged else evaluate(run.state.model, data.test).error_percent,
        train_loss=None if diverged or not lines else lines[-1]["loss"],
        diverged=diverged,
    )


def config_of(base: Mapping[str, Any], seed: int, **changes: Any) -> RunConfig:
    """A run of an experiment: its base, one seed, what this trial changes."""
    return RunConfig(**{"eval_epochs": 10_000, "max_bad_steps": 20, "seed": seed} | dict(base) | changes)
