"""What batch norm does in training (section 4): learning rate, initial scale, batch size, noise, mismatch."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from verydeep.analysis.norm_gap import norm_gaps
from verydeep.experiments.chapter.figure import fit_charts, mismatch_charts
from verydeep.experiments.chapter.setting import base, data_of, drawn_network, ordering
from verydeep.experiments.experiment import Experiment, Measurement, Results, Setting, Trial, Verdict
from verydeep.experiments.fit import config_of, fit
from verydeep.experiments.measured import listed, median_of
from verydeep.report.section import FAILS, HOLDS
from verydeep.training.evaluate import evaluate

LRS = (0.02, 0.05, 0.2, 0.8, 3.2)
INIT_SCALES = (0.1, 0.3, 1.0, 3.0, 10.0)
BATCH_SIZES = (2, 8, 64)


def _lr_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=200)

    def trial(norm: str, lr: float) -> Trial:
        config = {"model": "resnet20_cifar", "norm": norm, "lr": lr, "schedule": "constant", "warmup": 0.0}
        return Trial(f"{norm} {lr}", lambda seed: fit(config_of(fields, seed, **config)).to_dict(), cost=3.0)

    return [trial(norm, lr) for norm in ("batch", "none") for lr in LRS]


def _trains(measurement: Measurement) -> bool:
    """Whether the run went down to less than half the loss of guessing, ln 10 / 2."""
    return measurement["train_loss"] is not None and measurement["train_loss"] < 1.15


def trained_by_seed(results: Results, norm: str, values: Sequence[float], name: str) -> list[list[float]]:
    """For each seed, the values at which the network with this norm trains.

    Args:    name: of the trials, with places for norm and value
    """
    by_value = [results[name.format(norm=norm, value=value)] for value in values]
    seeds = zip(*by_value, strict=True)
    return [[v for v, measurement in zip(values, seed, strict=True) if _trains(measurement)] for seed in seeds]


def _judge_lr(results: Results, setting: Setting) -> dict[str, Verdict]:
    largest = {
        norm: [max(lrs, default=0.0) for lrs in trained_by_seed(results, norm, LRS, "{norm} {value}")]
        for norm in ("batch", "none")
    }
    medians = {norm: statistics.median(lrs) for norm, lrs in largest.items()}
    return {
        "bn-larger-lr": Verdict(
            HOLDS if medians["batch"] > medians["none"] else FAILS,
            largest["batch"],
            "largest learning rate at which the loss falls below half of guessing",
            f"with batch norm {medians['batch']:g}, without {medians['none']:g} ({_by_seed(largest['none'])} by seed); "
            f"final losses {listed(results, 'train_loss')}",
            (min(largest["batch"]), max(largest["batch"])),
        )
    }


def _by_seed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _init_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=150, lr=0.02)  # at which the network without norms trains from He's deviation

    def trial(norm: str, factor: float) -> Trial:
        def measure(seed: int) -> Measurement:
            model = drawn_network("resnet20_cifar", seed, data_of(fields), norm=norm)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 4:
                        parameter.mul_(factor)
            return fit(config_of(fields, seed), model=model).to_dict()

        return Trial(f"{norm} x{factor:g}", measure, cost=2.0)

    return [trial(norm, factor) for norm in ("batch", "none") for factor in INIT_SCALES]


def _judge_init(results: Results, setting: Setting) -> dict[str, Verdict]:
    factors = {norm: trained_by_seed(results, norm, INIT_SCALES, "{norm} x{value:g}") for norm in ("batch", "none")}
    numbers = {norm: [len(each) for each in by_seed] for norm, by_seed in factors.items()}
    return {
        "bn-init": Verdict(
            HOLDS if statistics.median(numbers["batch"]) > statistics.median(numbers["none"]) else FAILS,
            numbers["batch"],
            f"of {len(INIT_SCALES)} initial scales, those that train",
            f"with batch norm {_by_seed(numbers['batch'])} of them by seed, without {_by_seed(numbers['none'])}; "
            f"seed 0: {factors['batch'][0]} against {factors['none'][0]} times He's deviation",
            (min(numbers["batch"]), max(numbers["batch"])),
        )
    }


def _batch_trials(setting: Setting) -> Sequence[Trial]:
    def trial(norm: str, batch_size: int) -> Trial:
        # the same images; the learning rate goes with the batch, as in Wu and He 2018
        images = 64_000 * 128 if setting.scale == "paper" else 4 * 1438
        steps = images // batch_size
        fields = base(setting, steps=steps) | {"steps": steps}
        config = {"model": "preact_resnet20_cifar", "norm": norm, "batch_size": batch_size, "lr": 0.1 * batch_size / 64}

        def measure(seed: int) -> Measurement:
            return fit(config_of(fields, seed, **config)).to_dict()

        return Trial(f"{norm} {batch_size}", measure, cost=12.0 if batch_size == 2 else 4.0)

    return [trial(norm, batch_size) for norm in ("batch", "group") for batch_size in BATCH_SIZES]


def _judge_batch(results: Results, setting: Setting) -> dict[str, Verdict]:
    small, large = min(BATCH_SIZES), max(BATCH_SIZES)
    error = {name: median_of(values, "test_error_percent") for name, values in results.items()}
    lost = {norm: error[f"{norm} {small}"] - error[f"{norm} {large}"] for norm in ("batch", "group")}
    noise = {size: error_gaps(results, size) for size in BATCH_SIZES}
    median_noise = [statistics.median(gaps) for gaps in noise.values()]
    return {
        "bn-small-batch": ordering(
            lost["batch"] > 1.0 and lost["batch"] > lost["group"],
            results,
            "test_error_percent",
            quantity="test error_percent",
            of=f"batch {small}",
            detail=(
                f"from batches of {large} to {small}, batch norm loses {lost['batch']:.3g} points, group norm "
                f"{lost['group']:.3g}; {listed(results, 'test_error_percent', unit=' %')}"
            ),
        ),
        "bn-noise": Verdict(
            HOLDS if median_noise[0] < median_noise[-1] else FAILS,
            noise[small],
            f"test error minus training error, points, batches of {small}",
            "gap by batch size: "
            + ", ".join(f"{size}: {gap:.3g}" for size, gap in zip(BATCH_SIZES, median_noise, strict=True)),
            (min(noise[small]), max(noise[small])),
        ),
    }


def error_gaps(results: Results, batch_size: int) -> list[float]:
    """Test error minus training error of batch norm at a batch size, one a seed."""
    return [m["test_error_percent"] - m["train_error_percent"] for m in results[f"batch {batch_size}"]]


def _mismatch_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=150)

    def measure(seed: int) -> Measurement:
        trained = fit(config_of(fields, seed, model="preact_resnet20_cifar"))
        data = data_of(fields)
        assert data.train is not None and data.test is not None
        gaps: list[dict[str, Any]] = [vars(gap) for gap in norm_gaps(trained.model, data.train, seed=seed)]
        return {"gaps": gaps, "error_percent": evaluate(trained.model, data.test).error_percent}

    return [Trial("gap", measure, cost=4.0)]


def _judge_mismatch(results: Results, setting: Setting) -> dict[str, Verdict]:
    by_size: dict[int, list[float]] = {}
    for measurement in results["gap"]:
        for gap in measurement["gaps"]:
            if gap["momentum"] == 0.1:
                by_size.setdefault(gap["batch_size"], []).append(gap["output_gap"])
    medians = {size: sorted(gaps)[len(gaps) // 2] for size, gaps in by_size.items()}
    sizes = sorted(medians)
    return {
        "bn-mismatch": Verdict(
            HOLDS if medians[sizes[0]] > medians[sizes[-1]] > 0 else FAILS,
            by_size[sizes[0]],
            f"||training output - prediction|| / ||prediction||, batches of {sizes[0]}, momentum 0.1",
            "by batch size: " + ", ".join(f"{size}: {medians[size]:.3g}" for size in sizes),
        )
    }


NORM = (
    Experiment(
        name="bn-larger-lr",
        kind="trained",
        title="Section 4: batch norm allows larger learning rates",
        trials=_lr_trials,
        judge=_judge_lr,
        charts=fit_charts("bn-larger-lr", error="train_loss"),
        claims=("bn-larger-lr",),
        settings="resnet20 with and without batch norm, constant rate, 200 steps",
    ),
    Experiment(
        name="bn-init",
        kind="trained",
        title="Section 4: batch norm and the initial scale",
        trials=_init_trials,
        judge=_judge_init,
        charts=fit_charts("bn-init", error="train_loss"),
        claims=("bn-init",),
        settings="resnet20, convolutions times a factor at the start, 150 steps, peak rate 0.02",
    ),
    Experiment(
        name="batch-size",
        kind="trained",
        title="Section 4: small batches, and noise as a regulariser",
        trials=_batch_trials,
        judge=_judge_batch,
        charts=fit_charts("batch-size"),
        claims=("bn-small-batch", "bn-noise"),
        settings="preact_resnet20, four epochs, learning rate in proportion to the batch",
    ),
    Experiment(
        name="bn-mismatch",
        kind="trained",
        title="Section 4: training and prediction compute different functions",
        trials=_mismatch_trials,
        judge=_judge_mismatch,
        charts=mismatch_charts,
        claims=("bn-mismatch",),
        settings="preact_resnet20 after 150 steps, statistics of 50 batches at fixed weights",
    ),
)
