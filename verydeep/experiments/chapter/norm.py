"""What batch norm does in training (section 4): learning rate, initial scale, batch size, noise, mismatch."""

from collections.abc import Sequence
from typing import Any

import torch

from verydeep.analysis.norm_gap import norm_gaps
from verydeep.experiments.chapter.figure import fit_charts, mismatch_charts
from verydeep.experiments.chapter.setting import base, data_of, listed, median_of, ordering
from verydeep.experiments.experiment import Experiment, Measurement, Results, Setting, Trial, Verdict
from verydeep.experiments.fit import config_of, fit
from verydeep.models.catalogue import create_model
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


def _stable(measurements: Sequence[Measurement]) -> bool:
    """Whether the median run went down to less than half the loss of guessing, ln 10 / 2."""
    return median_of(measurements, "train_loss") < 1.15


def _judge_lr(results: Results) -> dict[str, Verdict]:
    largest = {
        norm: max((lr for lr in LRS if _stable(results[f"{norm} {lr}"])), default=0.0) for norm in ("batch", "none")
    }
    return {
        "bn-larger-lr": Verdict(
            HOLDS if largest["batch"] > largest["none"] else FAILS,
            [largest["batch"]],
            "largest learning rate at which the loss falls below half of guessing",
            f"with batch norm {largest['batch']:g}, without {largest['none']:g}; final losses "
            f"{listed(results, 'train_loss')}",
        )
    }


def _init_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=150)

    def trial(norm: str, factor: float) -> Trial:
        def measure(seed: int) -> Measurement:
            channels = data_of(fields).channels
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = create_model("resnet20_cifar", norm=norm, in_channels=channels)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() == 4:
                        parameter.mul_(factor)
            return fit(config_of(fields, seed), model=model).to_dict()

        return Trial(f"{norm} x{factor:g}", measure, cost=2.0)

    return [trial(norm, factor) for norm in ("batch", "none") for factor in INIT_SCALES]


def _judge_init(results: Results) -> dict[str, Verdict]:
    trained = {
        norm: [factor for factor in INIT_SCALES if _stable(results[f"{norm} x{factor:g}"])]
        for norm in ("batch", "none")
    }
    return {
        "bn-init": Verdict(
            HOLDS if len(trained["batch"]) > len(trained["none"]) else FAILS,
            [len(trained["batch"])],
            f"of {len(INIT_SCALES)} initial scales, those that train",
            f"with batch norm {trained['batch']}, without {trained['none']} times He's deviation",
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


def _judge_batch(results: Results) -> dict[str, Verdict]:
    small, large = min(BATCH_SIZES), max(BATCH_SIZES)
    error = {name: median_of(values, "test_error_percent") for name, values in results.items()}
    lost = {norm: error[f"{norm} {small}"] - error[f"{norm} {large}"] for norm in ("batch", "group")}
    noise = [error_gap(results, size) for size in BATCH_SIZES]
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
            HOLDS if noise[0] < noise[-1] else FAILS,
            [noise[0]],
            f"test error minus training error, points, batches of {small}",
            "gap by batch size: " + ", ".join(f"{s}: {g:.3g}" for s, g in zip(BATCH_SIZES, noise, strict=True)),
        ),
    }


def error_gap(results: Results, batch_size: int) -> float:
    """Median test error minus median training error of batch norm at a batch size."""
    values = results[f"batch {batch_size}"]
    return median_of(values, "test_error_percent") - median_of(values, "train_error_percent")


def _mismatch_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=150)

    def measure(seed: int) -> Measurement:
        trained = fit(config_of(fields, seed, model="preact_resnet20_cifar"))
        data = data_of(fields)
        assert data.train is not None and data.test is not None
        gaps: list[dict[str, Any]] = [vars(gap) for gap in norm_gaps(trained.model, data.train, seed=seed)]
        return {"gaps": gaps, "error_percent": evaluate(trained.model, data.test).error_percent}

    return [Trial("gap", measure, cost=4.0)]


def _judge_mismatch(results: Results) -> dict[str, Verdict]:
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
        settings="resnet20, convolutions times a factor at the start, 150 steps",
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
