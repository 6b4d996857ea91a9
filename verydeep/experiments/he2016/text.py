"""What the paper shows in figures and in its text: training courses, depth, gates, forward signals, warm-up."""

import math
import statistics
from functools import partial

from verydeep.experiments.experiment import Measurement, Results
from verydeep.experiments.he2016.cell import ERROR, FIGURE, Cell, Ordering
from verydeep.experiments.he2016.network import DEEP_STEPS, GATE_BIASES, trained_for
from verydeep.experiments.he2016.ordering import better, not_worse, worse
from verydeep.experiments.measured import differences, median_difference, median_of, values_of

DEEP, DEEP_PREACT = "resnet1001", "full_preact-resnet1001"
SHALLOW = trained_for(DEEP_STEPS, "resnet164")
SIGNALS = ("resnet110", "relu_before_addition-resnet110", "relu_only_preact-resnet110", "full_preact-resnet110")
SAME = 1e-3  # of a mean, by which another may be smaller and count as the same
SMOOTHED = 5  # log lines over which a training loss is averaged before steps are counted


def steps_to(measurement: Measurement, loss: float) -> int | None:
    """The first step at which the smoothed training loss is at most `loss`; None if it never is."""
    curve = measurement["curve"]
    for i in range(SMOOTHED - 1, len(curve)):
        if statistics.fmean(point[1] for point in curve[i - SMOOTHED + 1 : i + 1]) <= loss:
            return curve[i][0]
    return None


def step_ratios(results: Results) -> list[float | None]:
    """Steps that pre-activation needs for the training loss with which the original ends, over the original's."""
    ratios = []
    for original, preact in zip(results[DEEP], results[DEEP_PREACT], strict=True):
        steps = None if original["train_loss"] is None else steps_to(preact, original["train_loss"])
        ratios.append(None if steps is None else steps / original["curve"][-1][0])
    return ratios


def _reaches_sooner(results: Results) -> bool:
    return statistics.median(math.inf if ratio is None else ratio for ratio in step_ratios(results)) < 1


def last_loss(measurement: Measurement) -> float | None:
    """Training loss over the last tenth of the steps; None where the run diverged."""
    return measurement["train_loss"]


def _at_the_end(measurement: Measurement, quantity: str) -> list[float] | None:
    """A quantity of all units after the last step; None where the run diverged, or one is not finite."""
    values = None if measurement["diverged"] else measurement["observed"][-1][quantity]
    return None if values is None or None in values else values


def falls(measurement: Measurement) -> int | None:
    """Units whose output has a smaller mean than the unit before, within a stage, at the end of training."""
    means = _at_the_end(measurement, "mean")
    if means is None:
        return None
    gains = measurement["observed"][-1]["shortcut_gain"]  # None where a stage begins
    least = [mean - SAME * abs(mean) for mean in means]
    return sum(means[i] < least[i - 1] for i in range(1, len(means)) if gains[i] is not None)


def late_truncation(measurement: Measurement) -> float | None:
    """Mean over units of the share of y that the activation after the addition cuts off, at the end."""
    shares = _at_the_end(measurement, "truncated")
    return None if shares is None else statistics.fmean(shares)


def best_bias(results: Results) -> list[int]:
    """The gate bias with the least validation error, a value a seed."""
    errors = (values_of("validation_error_percent", f"gate-search-b{bias}", results) for bias in GATE_BIASES)
    seeds = zip(*([math.inf if error is None else error for error in column] for column in errors), strict=True)
    return [min(zip(row, GATE_BIASES, strict=True), key=lambda pair: pair[0])[1] for row in seeds]


def warmup_cost(name: str, results: Results) -> list[float]:
    """Points of test error that training without a warm-up costs, a value a seed."""
    return differences(ERROR, f"no-warmup-{name}", name, results)


losses = partial(values_of, "train_loss")  # over the last tenth of the steps, a value a seed


FIG1 = (
    Cell(
        "fig1", "1,001 layers: pre-activation reduces the training loss much faster", FIGURE, (DEEP, DEEP_PREACT),
        Ordering("pre-activation reaches the original's last training loss in fewer steps", (DEEP, DEEP_PREACT),
                 _reaches_sooner, last_loss),
        values=step_ratios, quantity="steps of pre-activation to the original's last training loss, over its steps",
    ),
    Cell(
        "fig1-lowest-loss", "it ends with a lower training loss too", FIGURE, (DEEP_PREACT,),
        better(DEEP_PREACT, DEEP, number="train_loss"), values=partial(losses, DEEP_PREACT),
        quantity="training loss, last tenth of the steps",
    ),
    Cell(
        "truncation-depth", "4.2: after some training the ReLU after the addition cuts off more in 1,001 layers than "
        "in 164", FIGURE, (DEEP,),
        worse(DEEP, SHALLOW, number=late_truncation),
        values=partial(values_of, late_truncation, DEEP),
        quantity="mean share of y below zero at the end",
    ),
)  # fmt: skip

FIG3 = tuple(
    Cell(
        f"fig3{letter}", f"{what}: higher training loss than the original", FIGURE, (name,),
        worse(name, "resnet110", number="train_loss"), values=partial(losses, name),
        quantity="training loss, last tenth of the steps",
    )
    for letter, name, what in (
        ("a", "scale0.5-branch0.5", "scaling by 0.5"),
        ("b", "exclusive-gate-b-6", "exclusive gate, bias -6"),
        ("c", "shortcut-gate-b0", "shortcut-only gate, bias 0"),
        ("d", "conv1x1", "1x1 convolutions"),
    )
)  # fmt: skip


FIG6 = (
    Cell(
        "fig6-left", "batch norm after the addition: higher training loss than the original, 110 layers", FIGURE,
        ("bn_after_addition-resnet110",), worse("bn_after_addition-resnet110", "resnet110", number="train_loss"),
        values=partial(losses, "bn_after_addition-resnet110"),
        quantity="training loss, last tenth of the steps",
    ),
    Cell(
        "fig6-right", "pre-activation: lower test error than the original, 164 layers", FIGURE,
        ("full_preact-resnet164",), better("full_preact-resnet164", "resnet164"),
    ),
    Cell(
        "fig6-right-loss", "and a slightly higher training loss at the end (4.2)", FIGURE, ("full_preact-resnet164",),
        worse("full_preact-resnet164", "resnet164", number="train_loss"),
        values=partial(losses, "full_preact-resnet164"),
        quantity="training loss, last tenth of the steps",
    ),
)  # fmt: skip


DEGRADATION = tuple(
    Cell(
        name, what, FIGURE, (deep,), shows(deep, shallow, number=key),
        values=partial(differences, key, deep, shallow), quantity="points of error that depth costs",
    )
    for name, what, key, shows, deep, shallow in (
        ("degradation-training", "56 plain layers have a higher training error than 20", "train_error_percent",
         worse, "plain56", "plain20"),
        ("degradation-training-residual", "56 residual layers have no higher training error than 20",
         "train_error_percent", not_worse, "resnet56", "resnet20"),
        ("degradation-test", "56 plain layers have a higher test error than 20", "test_error_percent",
         worse, "plain56", "plain20"),
        ("degradation-test-residual", "56 residual layers have no higher test error than 20", "test_error_percent",
         not_worse, "resnet56", "resnet20"),
    )
)  # fmt: skip

GATES = (
    Cell(
        "gate-bias-search", "3.1: among 0 to -10 the validation images choose -6 for the exclusive gate", -6,
        tuple(f"gate-search-b{bias}" for bias in GATE_BIASES),
        Ordering("the chosen bias is -3 or less: the shortcut is nearly the identity",
                 tuple(f"gate-search-b{bias}" for bias in GATE_BIASES),
                 lambda results: all(bias <= -3 for bias in best_bias(results)), "validation_error_percent"),
        values=best_bias, quantity="bias with the least validation error", tolerance=1.0,
    ),
)  # fmt: skip

PROJECTIONS = (
    Cell(
        "conv1x1-depth", "3.1: 1x1 convolutions on all shortcuts cost little at 34 layers (here 32) and much at 110",
        FIGURE, ("conv1x1",),
        Ordering(
            "they cost more points of test error at 110 layers than at 32",
            ("resnet32", "conv1x1-resnet32", "resnet110", "conv1x1"),
            lambda results: median_difference(ERROR, "conv1x1", "resnet110", results)
            > median_difference(ERROR, "conv1x1-resnet32", "resnet32", results),
        ),
        values=partial(differences, ERROR, "conv1x1", "resnet110"),
        quantity="points of test error that they cost at 110 layers",
    ),
)  # fmt: skip


FORWARD_SIGNAL = (
    Cell(
        "monotone-signal", "4.1: with the ReLU before the addition the forward signal never falls within a stage",
        FIGURE, ("relu_before_addition-resnet110",),
        Ordering(
            "no unit's output has a smaller mean than the unit before it; of the other orders some have", SIGNALS,
            lambda results: median_of(results[SIGNALS[1]], falls) == 0
            and all(median_of(results[name], falls) > 0 for name in (SIGNALS[0], *SIGNALS[2:])),
            falls,
        ),
        values=partial(values_of, falls, "relu_before_addition-resnet110"),
        quantity="units, of 51, whose output has a smaller mean than the one before",
    ),
)  # fmt: skip

WARMUP = (
    Cell(
        "warmup", "appendix: the warm-up is not necessary for pre-activation", FIGURE,
        ("no-warmup-full_preact-resnet110",),
        Ordering(
            "without it pre-activation loses less than the original does, or less than a point",
            ("resnet110", "no-warmup-resnet110", "full_preact-resnet110", "no-warmup-full_preact-resnet110"),
            lambda results: statistics.median(warmup_cost("full_preact-resnet110", results))
            < max(1.0, statistics.median(warmup_cost("resnet110", results))),
        ),
        values=partial(warmup_cost, "full_preact-resnet110"),
        quantity="points of test error that leaving out the warm-up costs pre-activation",
    ),
)  # fmt: skip
