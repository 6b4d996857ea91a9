"""Without batch norm's statistics, or with them disturbed: norm-free networks, Fixup, and injected shift."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from verydeep.analysis.shift import distribution_shift
from verydeep.experiments.chapter.figure import fit_charts
from verydeep.experiments.chapter.setting import DIGITS, base, listed, median_of, ordering
from verydeep.experiments.experiment import Experiment, Measurement, Results, Trial, Verdict
from verydeep.experiments.fit import config_of, fit

NETWORKS: dict[str, dict[str, Any]] = {
    "batch norm": {"model": "preact_resnet56_cifar"},
    "weight standardisation, adaptive clipping": {"model": "nf_resnet56_cifar", "clip_adaptive": 0.08},
    "Fixup": {"model": "preact_resnet56_cifar", "norm": "none", "scale": "fixup"},
    "SkipInit": {"model": "preact_resnet56_cifar", "norm": "none", "scale": "skipinit"},
}


def _norm_free_trials(scale: str) -> Sequence[Trial]:
    fields = base(scale, steps=300)

    def trial(name: str, config: dict[str, Any], cost: float) -> Trial:
        return Trial(name, lambda seed: fit(config_of(fields, seed, **config)).to_dict(), cost=cost)

    deep = NETWORKS["Fixup"] | {"model": "preact_resnet1202_cifar", "steps": 60}
    trials = [trial(name, config, 6.0) for name, config in NETWORKS.items()]
    return [*trials, trial("Fixup, 1202 layers", deep, 30.0)] if scale == "small" else trials


def _judge_norm_free(results: Results) -> dict[str, Verdict]:
    free = "weight standardisation, adaptive clipping"
    error = {name: median_of(values, "test_error_percent") for name, values in results.items()}
    return {
        "norm-free": ordering(
            error[free] <= error["batch norm"] + 2,
            results,
            "test_error_percent",
            quantity="test error_percent",
            of=free,
            detail=f"test error {listed(results, 'test_error_percent', unit=' %')}",
        )
    }


def _shift_trials(scale: str) -> Sequence[Trial]:
    fields = base(scale, steps=200)

    def trial(name: str, config: dict[str, Any], *, shifted: bool) -> Trial:
        def measure(seed: int) -> Measurement:
            def around(model: nn.Module) -> AbstractContextManager:
                return distribution_shift(model, seed=seed) if shifted else nullcontext()

            return fit(config_of(fields, seed, **config), around=around).to_dict()

        return Trial(name, measure, cost=4.0)

    network = {"model": "resnet20_cifar"}
    return [
        trial("batch norm", network, shifted=False),
        trial("batch norm, shifted", network, shifted=True),
        trial("no norm", network | {"norm": "none", "lr": 0.02}, shifted=False),
    ]


def _judge_shift(results: Results) -> dict[str, Verdict]:
    loss = {name: median_of(values, "train_loss") for name, values in results.items()}
    return {
        "ics": ordering(
            loss["batch norm, shifted"] < min(0.5, loss["no norm"]),
            results,
            "train_loss",
            quantity="training loss at the end",
            of="batch norm, shifted",
            detail=f"training loss {listed(results, 'train_loss')}",
        )
    }


NORM_FREE = (
    Experiment(
        name="norm-free",
        kind="trained",
        title="Notes: networks without normalisation",
        trials=_norm_free_trials,
        judge=_judge_norm_free,
        charts=fit_charts("norm-free"),
        claims=("norm-free",),
        settings=f"{DIGITS}; 56 layers, 300 steps; Fixup at 1,202 layers for 60 steps",
    ),
    Experiment(
        name="shift",
        kind="trained",
        title="Section 4: injected distribution shift",
        trials=_shift_trials,
        judge=_judge_shift,
        charts=fit_charts("shift", error="train_loss"),
        claims=("ics",),
        settings=f"{DIGITS}; resnet20, 200 steps, fresh shift and scale after each norm at each step",
    ),
)
