"""Depth: degradation of plain networks (section 1), 1,202 layers, and depth against width (notes)."""

from collections.abc import Sequence
from typing import Any

from verydeep.experiments.chapter.figure import fit_charts
from verydeep.experiments.chapter.setting import base, ordering
from verydeep.experiments.experiment import Experiment, Measurement, Results, Setting, Trial, Verdict
from verydeep.experiments.fit import config_of, fit
from verydeep.experiments.measured import listed, median_of


def _trial(name: str, fields: dict[str, Any], *, cost: float, **changes: Any) -> Trial:
    def measure(seed: int) -> Measurement:
        return fit(config_of(fields, seed, **changes)).to_dict()

    return Trial(name, measure, cost=cost)


# Plain nets of 20 and 56 layers show it on CIFAR-10; on the easier digits the deeper one must be deeper.
def _degradation_trials(setting: Setting) -> Sequence[Trial]:
    shallow, deep = (20, 56) if setting.scale == "paper" else (20, 110)
    fields = base(setting, steps=300)
    return [
        _trial(f"{kind}{depth}", fields, cost=depth / 10, model=f"{kind}{depth}_cifar")
        for kind in ("plain", "resnet")
        for depth in (shallow, deep)
    ]


def _judge_degradation(results: Results, setting: Setting) -> dict[str, Verdict]:
    plain_shallow, plain_deep, residual_shallow, residual_deep = results
    error = {name: median_of(values, "train_error_percent") for name, values in results.items()}
    worse_plain = error[plain_deep] - error[plain_shallow]
    worse_residual = error[residual_deep] - error[residual_shallow]
    return {
        "degradation": ordering(
            worse_plain > max(1.0, 2 * worse_residual),
            results,
            "train_error_percent",
            quantity="training error_percent",
            of=plain_deep,
            detail=(
                f"training error {listed(results, 'train_error_percent', unit=' %')}: depth costs the plain network "
                f"{worse_plain:.3g} points, the residual one {worse_residual:.3g}"
            ),
        )
    }


def _depth_1202_trials(setting: Setting) -> Sequence[Trial]:
    # as in He et al. 2015, whose 110 layers begin at 0.01: original units this deep do not train at 0.05
    fields = base(setting, steps=150, lr=0.01)
    return [
        _trial(f"resnet{depth}", fields, cost=depth / 20, model=f"resnet{depth}_cifar") for depth in (20, 110, 1202)
    ]


def _judge_depth_1202(results: Results, setting: Setting) -> dict[str, Verdict]:
    train = {name: median_of(values, "train_error_percent") for name, values in results.items()}
    test = {name: median_of(values, "test_error_percent") for name, values in results.items()}
    fits = train["resnet1202"] <= 2.0
    return {
        "depth-1202": ordering(
            fits and test["resnet1202"] > test["resnet110"],
            results,
            "test_error_percent",
            quantity="test error_percent",
            of="resnet1202",
            detail=(
                f"training error {listed(results, 'train_error_percent', unit=' %')}; "
                f"test error {listed(results, 'test_error_percent', unit=' %')}"
            ),
        )
    }


# Multiply-adds go as units times width squared: 16 of 110 layers cost 23 of 56, 39 of 20, 73 of 8.
SHAPES = {"8 layers, width 73": (8, 73), "20 layers, width 39": (20, 39), "56 layers, width 23": (56, 23),
          "110 layers, width 16": (110, 16)}  # fmt: skip


def _depth_width_trials(setting: Setting) -> Sequence[Trial]:
    fields = base(setting, steps=200)
    return [
        _trial(name, fields, cost=12.0, model=f"preact_resnet{depth}_cifar", widen=width / 16, option="B")
        for name, (depth, width) in SHAPES.items()
    ]


def _judge_depth_width(results: Results, setting: Setting) -> dict[str, Verdict]:
    test = {name: median_of(values, "test_error_percent") for name, values in results.items()}
    best = min(test, key=lambda name: test[name])
    deepest = list(SHAPES)[-1]
    return {
        "depth-width": ordering(
            test[deepest] > test[best],
            results,
            "test_error_percent",
            quantity="test error_percent",
            of=deepest,
            detail=f"at equal multiply-adds: {listed(results, 'test_error_percent', unit=' %')}; best here: {best}",
        )
    }


DEPTH = (
    Experiment(
        name="degradation",
        kind="trained",
        title="Section 1: degradation of plain networks with depth",
        trials=_degradation_trials,
        judge=_judge_degradation,
        charts=fit_charts("degradation", error="train_error_percent"),
        claims=("degradation",),
        settings="20 against 110 layers, 300 steps",
    ),
    Experiment(
        name="depth-1202",
        kind="trained",
        title="Notes: 1,202 layers",
        trials=_depth_1202_trials,
        judge=_judge_depth_1202,
        charts=fit_charts("depth-1202", error="test_error_percent"),
        claims=("depth-1202",),
        settings="original units, 150 steps, peak rate 0.01",
    ),
    Experiment(
        name="depth-width",
        kind="trained",
        title="Notes: depth against width at equal cost",
        trials=_depth_width_trials,
        judge=_judge_depth_width,
        charts=fit_charts("depth-width", error="test_error_percent"),
        claims=("depth-width",),
        settings="200 steps; multiply-adds equal within 5 %",
    ),
)
