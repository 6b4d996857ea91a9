"""Rules on the loss, its labels and the optimizer's steps."""

import math
from statistics import median

from torch import Tensor

from verydeep.analysis.finding import Finding, Severity
from verydeep.analysis.reading import Reading, num_classes

# Logits of variance s^2 at random cost s^2 / 2 above ln(classes); healthy families begin at most 9 above. At 12 (s = 5)
# the softmax of ten classes is one-hot and wrong.
ABOVE = 12.0
PROBABILITIES = 1e-3  # how far the rows of probabilities may be from 1
# |update| / |weight| of a step. Adam's first step is lr / std(w): 0.05 for lr 1e-3 and std 0.02.
LARGE, HUGE = 0.3, 1.0
SMALL = 1e-5  # 100,000 steps that all agree would double the weights
ENOUGH = 10  # steps, to ask whether the loss falls
FALL = 0.01  # of the first loss
KARPATHY = "Karpathy 2019, A Recipe for Training Neural Networks"


def bad_initial_loss(reading: Reading) -> list[Finding]:
    classes = num_classes(reading)
    if classes is None or classes < 2 or reading.loss is None or not math.isfinite(reading.loss):
        return []
    expected = math.log(classes)
    if reading.loss <= expected + ABOVE:
        return []
    evidence = {"loss": reading.loss, "ln(classes)": expected, "classes": float(classes)}
    why = "The loss is far above that of guessing: the logits are large before anything is known."
    remedy = "Make the head's weights smaller (standard deviation 0.01, or zero), and put a norm before it."
    return [Finding("bad-initial-loss", "warning", "loss", evidence, why, remedy, KARPATHY)]


def double_softmax(reading: Reading) -> list[Finding]:
    for index, values in reading.values.items():
        node = reading.graph.nodes[index]
        low, high = values.get("least", -1.0), values.get("most", 2.0)
        within = low >= 0 and high <= 1 + PROBABILITIES and high > 0
        rows = values.get("row_error", 1.0) < PROBABILITIES
        softmax = node.name in ("cross_entropy", "log_softmax", "_log_softmax") and within
        softmax = softmax and (rows or _after_sigmoid(reading, index))
        logits = node.name == "binary_cross_entropy_with_logits" and within and _after_sigmoid(reading, index)
        likelihood = node.name.startswith("nll_loss") and within and rows
        if not (softmax or logits or likelihood):
            continue
        evidence = {"least": low, "most": high, "rows sum to 1 within": values.get("row_error", 0.0)}
        why = (
            "The loss takes log-probabilities and is given probabilities."
            if likelihood
            else "The loss applies a softmax or sigmoid, but is given probabilities already: its gradient is squashed."
        )
        remedy = (
            "Give the loss logits: remove the last softmax or sigmoid of the model (or use log_softmax with nll_loss)."
        )
        return [Finding("double-softmax", "error", node.site, evidence, why, remedy, "torch.nn.CrossEntropyLoss")]
    return []


def _after_sigmoid(reading: Reading, index: int) -> bool:
    """Whether what a loss takes comes out of a sigmoid, past nothing but changes of shape."""
    index = reading.graph.nodes[index].inputs[0]
    while reading.graph.nodes[index].kind == "shape":
        index = reading.graph.nodes[index].inputs[0]
    return reading.graph.nodes[index].name.strip("_") == "sigmoid"


def label_mismatch(reading: Reading) -> list[Finding]:
    problem = _label_problem(reading)
    if problem is None:
        return []
    evidence, why, remedy = problem
    return [Finding("label-mismatch", "error", "labels", evidence, why, remedy, KARPATHY)]


def _label_problem(reading: Reading) -> tuple[dict[str, float], str, str] | None:
    labels, logits = reading.labels, reading.logits
    for index, values in reading.values.items():
        if reading.graph.nodes[index].kind == "loss":
            if values.get("broadcast") and reading.graph.nodes[index].name != "cross_entropy":
                return (
                    {},
                    "Output and labels have different shapes, and the loss broadcasts one over the other.",
                    ("Give both the same shape, with view or squeeze."),
                )
            if reading.graph.nodes[index].name.startswith("binary") and not (
                values.get("target_least", 0) >= 0 and values.get("target_most", 1) <= 1
            ):
                evidence = {"least": values["target_least"], "most": values["target_most"]}
                return evidence, "Labels of a binary cross-entropy lie outside 0 to 1.", "Give labels of 0 and 1."
    if not isinstance(labels, Tensor) or logits is None or not labels.numel():
        return None
    return _class_problem(reading, labels, logits)


def _class_problem(reading: Reading, labels: Tensor, logits: Tensor) -> tuple[dict[str, float], str, str] | None:
    if labels.dim() and logits.dim() and labels.shape[0] != logits.shape[0]:
        evidence = {"labels": float(labels.shape[0]), "outputs": float(logits.shape[0])}
        return evidence, "There are not as many labels as outputs.", "Check how the batch is split or reshaped."
    classes = num_classes(reading)
    if classes is None:
        if reading.error is not None and reading.error_site == "loss":
            return (
                {},
                f"The loss refuses output and labels: {str(reading.error).splitlines()[0]}",
                "Give the shapes and types that it takes.",
            )
        return None
    valid = labels[labels != -100]
    evidence = (
        {"least label": float(valid.min()), "largest label": float(valid.max()), "classes": float(classes)}
        if valid.numel()
        else {}
    )
    if not valid.numel():
        return evidence, "Every label is the ignored one.", "Check how labels are made."
    if classes == 1:
        return (
            evidence,
            "The head has one output, whose softmax is always 1: the loss is zero whatever it computes.",
            ("Give it one output a class, or use a binary cross-entropy."),
        )
    if valid.min() < 0 or valid.max() >= classes:
        return (
            evidence,
            "Labels lie outside 0 .. classes - 1.",
            "Give the head one output a class, and count labels from 0.",
        )
    if reading.error is not None and reading.error_site == "loss":
        return (
            evidence,
            f"The loss refuses output and labels: {str(reading.error).splitlines()[0]}",
            "Give the shapes and types that it takes.",
        )
    return None


def update_too_large(reading: Reading) -> list[Finding]:
    trial = reading.trial
    if trial is None or not trial.ratios:
        return []
    ratio, first, last = median(trial.ratios.values()), trial.losses[0], trial.losses[-1]
    diverged = math.isfinite(first) and not last <= 2 * abs(first) + 1
    if not (ratio > LARGE or (diverged and ratio > LARGE / 10)):
        return []
    severity: Severity = "error" if ratio > HUGE or diverged else "warning"
    worst = max(trial.ratios, key=lambda name: trial.ratios[name])
    evidence = {
        "median |update| / |weight|": ratio,
        "largest": trial.ratios[worst],
        "loss before": first,
        "after": last,
    }
    why = "One step changes the weights by much of their own size, so what was there is overwritten."
    remedy = "Lower the learning rate by ten, clip gradients, or warm up."
    return [Finding("update-too-large", severity, worst, evidence, why, remedy, KARPATHY)]


def update_too_small(reading: Reading) -> list[Finding]:
    trial = reading.trial
    if trial is None or not trial.ratios:
        return []
    ratio = median(trial.ratios.values()) * trial.momentum_gain
    if not ratio < SMALL:
        return []
    least = min(trial.ratios, key=lambda name: trial.ratios[name])
    evidence = {"median |update| / |weight|": ratio, "limit": SMALL}
    why = "A step changes the weights so little that a hundred thousand would not double them."
    remedy = "Raise the learning rate; look for a loss that is scaled down, or gradients that are clipped to nothing."
    return [Finding("update-too-small", "warning", least, evidence, why, remedy, KARPATHY)]


def loss_not_decreasing(reading: Reading) -> list[Finding]:
    trial = reading.trial
    if trial is None or len(trial.losses) <= ENOUGH:
        return []
    first, tail = trial.losses[0], trial.losses[-max(1, len(trial.losses) // 4) :]
    if all(map(math.isfinite, tail)) and median(tail) < first - FALL * abs(first):
        return []
    evidence = {"first loss": first, "last loss": trial.losses[-1], "steps": float(len(trial.losses) - 1)}
    why = "The loss does not fall although every step sees the same batch, which any network that learns would fit."
    remedy = "Mend the findings above; then change the learning rate by ten in both directions."
    return [Finding("loss-not-decreasing", "warning", "loss", evidence, why, remedy, KARPATHY)]
