"""Without batch norm's statistics, or with them disturbed: norm-free networks, Fixup, and injected shift."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from verydeep.analysis.shift import distribution_shift
from verydeep.experiments.chapter.figure import fit_charts
from verydeep.experiments.chapter.setting import base, data_of, drawn_network, ordering
from verydeep.experiments.experiment import Experiment, Measurement, Results, Setting, Trial, Verdict
from verydeep.experiments.fit import config_of, fit
from verydeep.experiments.measured import listed, median_of
from verydeep.nn.weight import convert_weight_norm

# fields of RunConfig; weight norm has none: its convolutions are converted
NETWORKS: dict[str, dict[str, Any]] = {
    "batch norm": {"model": "preact_resnet56_cifar"},
    "weight standardisation, adaptive clipping": {"model": "nf_resnet56_cifar", "clip_adaptive": 0.08},
    "weight norm": {"model": "preact_resnet56_cifar", "norm": "none", "scale": "inverse_sqrt"},
    "Fixup": {"model": "preact_resnet56_cifar", "norm": "none", "scale": "fixup"},
    "SkipInit": {"model": "preact_resnet56_cifar", "norm": "none", "scale": "skipinit"},
}
# the best rate depends on what bounds the weights' steps: each network is judged at the one that trains it best
LRS = (0.05, 0.2, 0.8)
DEEP_FIXUP = "Fixup, 1202 layers"


def _norm_free_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=300)

    def trial(network: str, lr: float, cost: float, **changes: Any) -> Trial:
        def measure(seed: int) -> Measurement:
            config = NETWORKS[network] | {"lr": lr} | changes
            model = None
            if network == "weight norm":
                options = {name: config[name] for name in ("norm", "scale")}
                model = drawn_network(config["model"], seed, data_of(fields), **options)
                convert_weight_norm(model)
            return fit(config_of(fields, seed, **config), model=model).to_dict()

        return Trial(f"{DEEP_FIXUP if changes else network}, lr {lr:g}", measure, cost=cost)

    trials = [trial(network, lr, 13.0) for network in NETWORKS for lr in LRS]
    deep = trial("Fixup", 0.05, 50.0, model="preact_resnet1202_cifar", steps=60)
    return [*trials, deep] if setting.scale == "small" else trials


def at_best_rate(results: Results) -> dict[str, Sequence[Measurement]]:
    """The measurements of each network at the rate with the lowest median training loss."""
    best: dict[str, tuple[float, Sequence[Measurement]]] = {}
    for trial, measurements in results.items():
        network = trial.rpartition(", lr ")[0]
        loss = median_of(measurements, "train_loss")
        if network not in best or loss < best[network][0]:
            best[network] = loss, measurements
    return {network: measurements for network, (_, measurements) in best.items()}


def _judge_norm_free(results: Results, setting: Setting) -> dict[str, Verdict]:
    best = at_best_rate(results)
    free = "weight standardisation, adaptive clipping"
    error = {network: median_of(values, "test_error_percent") for network, values in best.items()}
    return {
        "norm-free": ordering(
            error[free] <= error["batch norm"] + 2,
            best,
            "test_error_percent",
            quantity="test error_percent",
            of=free,
            detail=(
                f"test error {listed(best, 'test_error_percent', unit=' %')}; {free}: "
                f"{error[free] - error['batch norm']:+.3g} points against batch norm"
            ),
        )
    }


def _shift_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=200)

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


def _judge_shift(results: Results, setting: Setting) -> dict[str, Verdict]:
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
        charts=lambda results: fit_charts("norm-free")(at_best_rate(results)),
        claims=("norm-free",),
        settings=(
            f"56 layers, 300 steps at peak rates {', '.join(map(str, LRS))}, each network shown at the one with the "
            "lowest training loss; weight norm with branches scaled by 1/sqrt(K); Fixup at 1,202 layers for 60 steps"
        ),
    ),
    Experiment(
        name="shift",
        kind="trained",
        title="Section 4: injected distribution shift",
        trials=_shift_trials,
        judge=_judge_shift,
        charts=fit_charts("shift", error="train_loss"),
        claims=("ics",),
        settings="resnet20, 200 steps, fresh shift and scale after each norm at each step",
    ),
)
