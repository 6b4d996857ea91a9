"""Rules on batch norm and its kin: statistics that are old, that are of too few values, or that hardly move."""

import math

from verydeep.analysis.finding import Finding, Severity
from verydeep.analysis.reading import Reading
from verydeep.analysis.rules.profile import site

IOFFE = "Ioffe & Szegedy 2015, Batch Normalization; Ioffe 2017, Batch Renormalization"
# The relative standard error of a variance of n values is sqrt(2 / (n - 1)): 1.4 for two, 0.5 for eight.
SIGNS_ONLY, FEW = 2, 8  # of two values a norm leaves the sign alone
# Batch against running, root mean square over channels: means in deviations, |ln| of variances. One deviation moves a
# sixth of a normal signal to the other side of a ReLU at its mean.
SHIFTED, SCALED = 1.0, math.log(4)
FAST, SLOW = 0.5, 1e-4  # momentum: beyond, one batch decides; below, 10,000 steps pass before the first counts half
HALF = 0.5  # of the running statistics are still the values that they began with
MEMORY = 3.0  # time constants of the running mean within which the first value still shows


def norm_stats_stale(reading: Reading) -> list[Finding]:
    fresh = [norm for norm in reading.batch_norms if norm.fresh and not norm.training]
    if fresh:
        why = (
            "Batch norms are in eval mode and their running statistics are still 0 and 1: they have never been updated."
        )
        remedy = "Train first, or measure the statistics on training images; to judge training, call model.train()."
        evidence = {"norms": float(len(fresh)), "of": float(len(reading.batch_norms))}
        return [Finding("norm-stats-stale", "warning", fresh[0].name, evidence, why, remedy, IOFFE)]
    far = [
        (index, values["shift"], values["log_ratio"])
        for index, values in reading.values.items()
        if values.get("values", 0) >= 2 * FEW
        and (values.get("shift", 0) > SHIFTED or values.get("log_ratio", 0) > SCALED)
    ]
    if not far:
        return []
    index, shift, ratio = far[0]
    evidence = {"shift, deviations": shift, "ratio of variances": math.exp(min(ratio, 700)), "norms": float(len(far))}
    why = (
        "The running statistics are far from those of this batch, so eval mode computes another function than training."
    )
    remedy = "Feed inputs as in training, or measure the statistics again with the final weights."
    return [Finding("norm-stats-stale", "warning", site(reading, index), evidence, why, remedy, IOFFE)]


def norm_degenerate_batch(reading: Reading) -> list[Finding]:
    remedy = "Use larger batches or maps, or a norm that does not look across the batch (group or layer norm)."
    if reading.error is not None and "more than 1 value per channel" in str(reading.error):
        why = (
            "This batch norm has one value a channel in training mode: there is nothing to normalise, and torch "
            "refuses."
        )
        return [Finding("norm-degenerate-batch", "error", reading.error_site, {"values": 1.0}, why, remedy, IOFFE)]
    few = []
    for index, values in reading.values.items():
        n = values.get("values", math.inf)
        batch = "training" in values
        if (n <= SIGNS_ONLY and values.get("training", 1)) or (batch and values["training"] and n < FEW):
            few.append((index, n))
    if not few:
        return []
    index, n = min(few, key=lambda point: point[1])
    severity: Severity = "error" if n <= SIGNS_ONLY else "warning"
    evidence = {
        "values": n,
        "error of the variance": math.sqrt(2 / max(1e-9, n - 1)) if n > 1 else math.inf,
        "norms": float(len(few)),
    }
    why = f"Mean and variance are of {n:g} values each: what the norm gives is mostly their noise."
    return [Finding("norm-degenerate-batch", severity, site(reading, index), evidence, why, remedy, IOFFE)]


def norm_momentum(reading: Reading) -> list[Finding]:
    given = [norm for norm in reading.batch_norms if norm.momentum is not None]
    fast = [norm for norm in given if norm.momentum > FAST]  # type: ignore[operator]
    slow = [norm for norm in given if norm.momentum < SLOW]  # type: ignore[operator]
    early = [
        n for n in given if n.momentum and 0 < n.num_tracked < MEMORY / n.momentum and not n.training and not n.fresh
    ]
    if fast or slow:
        norm = (fast or slow)[0]
        evidence = {"momentum": float(norm.momentum or 0.0), "norms": float(len(fast or slow))}
        why = (
            "The running statistics are nearly those of the last batch: torch's momentum weighs the new value."
            if fast
            else "The running statistics hardly move, so eval mode will use those of the start."
        )
        remedy = "Set momentum to 0.1 (torch's convention; 0.9 of other libraries is 0.1 here)."
        return [Finding("norm-momentum", "warning", norm.name, evidence, why, remedy, "torch.nn.BatchNorm2d")]
    if not early:
        return []
    norm = early[0]
    left = (1 - (norm.momentum or 0.0)) ** norm.num_tracked  # the weight of 0 and 1, with which they began
    severity: Severity = "warning" if left > HALF else "info"
    evidence = {"momentum": float(norm.momentum or 0.0), "steps": float(norm.num_tracked), "first values": left}
    why = "Too few steps have been averaged for this momentum: the running statistics still hold their first values."
    remedy = "Train longer, raise momentum, or measure the statistics anew (momentum=None averages all batches)."
    return [Finding("norm-momentum", severity, norm.name, evidence, why, remedy, "torch.nn.BatchNorm2d")]
