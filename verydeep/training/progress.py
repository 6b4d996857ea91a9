"""How far a run has come, and what its resumption may change."""

import math
from dataclasses import dataclass
from typing import Any

from verydeep.training.evaluate import Evaluation

# What may be different when a run is resumed: it changes how the run is carried out, not what it computes.
FREE_TO_CHANGE = (
    "device", "compile", "memory_budget", "workers", "checkpoint_seconds", "max_bad_steps", "logger", "data_root",
    "out", "model", "data",
)  # fmt: skip


@dataclass
class Progress:
    """How far a run has come: with weights and optimizer, all that a checkpoint holds.

    Args:    step: steps done
             bad_steps: of them, those with a non-finite loss or gradient
             seconds: spent, over all the times it was resumed
             epoch_loss, epoch_images: sums over the epoch in progress, up to the last log line
             best: the best evaluation on the validation images, and its step
             stale_evaluations: on them, since their error last fell
    """

    step: int = 0
    bad_steps: int = 0
    seconds: float = 0.0
    epoch_loss: float = 0.0
    epoch_images: int = 0
    best: dict[str, Any] | None = None
    stale_evaluations: int = 0

    @property
    def train_loss(self) -> float | None:
        return self.epoch_loss / self.epoch_images if self.epoch_images else None

    def validated(self, evaluation: Evaluation) -> bool:
        """Take in an evaluation on the validation images; whether its weights are the best so far."""
        best = self.best
        is_best = improves(evaluation, best)
        fell = is_best and (best is None or evaluation.error_percent < best["error_percent"])
        self.stale_evaluations = 0 if fell else self.stale_evaluations + 1
        if is_best:
            self.best = {"step": self.step} | evaluation.to_dict()
        return is_best


def improves(evaluation: Evaluation, best: dict[str, Any] | None) -> bool:
    """Whether an evaluation beats the best so far: lower error, then lower loss. A non-finite loss never does."""
    if not math.isfinite(evaluation.loss):
        return False
    return best is None or (evaluation.error_percent, evaluation.loss) < (best["error_percent"], best["loss"])
