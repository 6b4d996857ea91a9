"""Rules on the forward signal: its scale over depth, what activations leave of it, whether samples still differ."""

import math

from verydeep.analysis.finding import Finding, Severity
from verydeep.analysis.reading import Reading
from verydeep.analysis.rules.profile import log_slope, signal_profile, site

HE2015 = "He et al. 2015, Delving Deep into Rectifiers, section 2.2"
# Branches of constant variance make the sum's variance grow linearly, by at most the number of units (He et al. 2016,
# section 3; De & Smith 2020); ten times that is no longer linear. Below 1000 a single norm or head absorbs it.
LEAST_GROWTH, PER_UNIT = 1e3, 10.0
BROKEN_GROWTH = 1e6  # root mean square a thousand times the first: softmax and sigmoid have no slope left
# Width-64 ReLU networks of 100 layers with He's initialisation drift to 1e-3 by chance alone.
COLLAPSED, GONE = 1e-4, 1e-8  # of the first mean square; at 1e-8 a bias of 1e-4 of the signal's size decides
DEAD_CHANNELS = 0.9  # squeeze-and-excitation layers, with one value a sample, reach 0.75 by chance
LEAST_VALUES = 8  # a channel: with fewer, half-normal values are all negative too often (2^-8 = 0.4 %)
SATURATED, STUCK = 0.5, 0.9  # share of values whose slope is below a twelfth of the largest
ALIKE, SAME = 1e-4, 1e-8  # share of the features' square that differs between samples; float32 resolves 1e-14
LARGE_INPUT = 10.0  # root mean square: standardised pixels have 1, raw 8-bit pixels 130
SPREAD = 1e3  # largest over smallest standard deviation of the features: the condition number is its square


def nonfinite(reading: Reading) -> list[Finding]:
    where = _first_nonfinite(reading)
    if where is None:
        return []
    place, what = where
    why = f"{what} is the first thing in the step that is NaN or infinite; everything after it is too."
    remedy = "Look at what makes this value: a division, log or root of zero, an overflow, or damaged data or weights."
    return [Finding("nonfinite", "error", place, {}, why, remedy, "IEEE 754")]


def _first_nonfinite(reading: Reading) -> tuple[str, str] | None:
    for facts in reading.inputs:
        if not facts.finite:
            return facts.name, "The input"
    for parameter in reading.parameters.values():
        if not parameter.finite:
            return parameter.name, "This parameter"
    for index, values in sorted(reading.values.items()):
        if not values.get("finite", 1.0):
            return site(reading, index), "The output"
    if reading.loss is not None and not math.isfinite(reading.loss):
        return "loss", "The loss"
    for index, gradient in sorted(reading.gradients.items(), reverse=True):
        if not math.isfinite(gradient):
            return site(reading, index), "The gradient"
    return None


def variance_explosion(reading: Reading) -> list[Finding]:
    profile = signal_profile(reading)
    if len(profile) < 2 or profile[0][1] <= 0:
        return []
    first, (worst, most) = profile[0][1], max(profile, key=lambda point: point[1])
    growth, limit = most / first, max(LEAST_GROWTH, PER_UNIT * len(reading.additions))
    if not growth > limit:
        return []
    severity: Severity = "error" if growth > BROKEN_GROWTH else "warning"
    evidence = {"growth": growth, "limit": limit, "factor a layer": math.exp(log_slope(reading, profile))}
    why = "The mean square of the signal grows faster with depth than adding branches of constant size can make it."
    remedy = (
        "Put a norm into each branch, or scale branches by 1/sqrt(number of units) or a scalar that begins at zero; "
        "in a plain network initialise weights with variance 2/fan-in."
    )
    return [Finding("variance-explosion", severity, site(reading, worst), evidence, why, remedy, HE2015)]


def variance_collapse(reading: Reading) -> list[Finding]:
    profile = signal_profile(reading)
    if len(profile) < 2 or not 0 < profile[0][1] < math.inf:
        return []
    worst, least = min(profile, key=lambda point: point[1])
    shrinkage = least / profile[0][1]
    if not shrinkage < COLLAPSED:
        return []
    severity: Severity = "error" if shrinkage < GONE else "warning"
    evidence = {"shrinkage": shrinkage, "factor a layer": math.exp(log_slope(reading, profile))}
    why = "The signal shrinks from layer to layer until biases and rounding outweigh it."
    remedy = (
        "Initialise weights with variance 2/fan-in (ReLU) or 1/fan-in (tanh), put a norm after them, or add shortcuts."
    )
    return [Finding("variance-collapse", severity, site(reading, worst), evidence, why, remedy, HE2015)]


def dead_activation(reading: Reading) -> list[Finding]:
    bad = []
    for index, values in reading.values.items():
        share = values.get("dead_channels", 0.0)
        if reading.value(reading.graph.nodes[index].inputs[0], "mean_square") == 0:
            continue  # nothing came in
        if share > DEAD_CHANNELS and values.get("per_channel", 0) >= LEAST_VALUES and not _gates(reading, index):
            bad.append((index, share))
    if not bad:
        return []
    index, share = next((point for point in bad if point[1] == 1), bad[0])
    severity: Severity = "error" if share == 1 else "warning"
    why = "These units are zero for every sample of the batch, so no gradient passes them."
    remedy = (
        "Lower the learning rate or the negative bias before the activation, standardise the input, or use a "
        "leaky activation."
    )
    evidence = {"dead channels": share, "activations": float(len(bad))}
    source = "Lu et al. 2019, Dying ReLU and Initialization"
    return [Finding("dead-activation", severity, site(reading, index), evidence, why, remedy, source)]


def saturated_activation(reading: Reading) -> list[Finding]:
    shares = {
        index: values.get("saturated", values.get("certain", 0.0))
        for index, values in reading.values.items()
        if not _gates(reading, index) and not _is_output(reading, index)
    }
    bad = {index: share for index, share in shares.items() if share > SATURATED}
    if not bad:
        return []
    first = min(bad)
    severity: Severity = "error" if max(bad.values()) > STUCK and len(bad) > 1 else "warning"
    evidence = {"saturated": bad[first], "activations": float(len(bad))}
    why = "Most values lie where the activation is flat, so little gradient passes."
    remedy = (
        "Make what goes in smaller: weights of variance 1/fan-in, standardised input, a norm before; in "
        "attention divide by sqrt(d)."
    )
    source = "Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks"
    return [Finding("saturated-activation", severity, site(reading, first), evidence, why, remedy, source)]


def _gates(reading: Reading, index: int) -> bool:
    """Whether the activation is, or leads to, a gate: it may be closed by design."""
    nodes, users = reading.graph.nodes, reading.graph.users
    if nodes[index].name == "scaled_dot_product_attention" or "softmax" in nodes[index].name:
        return False
    seen, stack, left = set(), [index], 12
    while stack and left:
        left -= 1
        for user in users[stack.pop()]:
            kind = nodes[user].kind
            if kind == "gate" or (kind == "attention" and nodes[index].name in ("sigmoid", "tanh")):
                return True
            if user not in seen and kind in ("shape", "scale", "other", "act"):
                seen.add(user)
                stack.append(user)
    return False


def _is_output(reading: Reading, index: int) -> bool:
    """Whether nothing with weights comes after it."""
    seen, stack = set(), [index]
    while stack:
        for user in reading.graph.users[stack.pop()]:
            if reading.graph.nodes[user].kind == "weight":
                return False
            if user not in seen:
                seen.add(user)
                stack.append(user)
    return True


def constant_output(reading: Reading) -> list[Finding]:
    if any(facts.variation < 1e-3 for facts in reading.inputs):
        return []  # the samples themselves are alike
    features, output = reading.variations.get("features"), reading.variations.get("output")
    place, value = "features", features
    if features is not None and features >= ALIKE and output is not None and not _zero_head(reading):
        place, value = "output", output
    if value is None or not value < ALIKE:
        return []
    severity: Severity = "error" if value < SAME else "warning"
    evidence = {"variation": value} | {
        f"rank of the {place}": reading.variations[key] for key in [f"{place} rank"] if key in reading.variations
    }
    why = f"The {place} hardly depend on the input: all samples of the batch look alike there."
    remedy = (
        "Find the layer where samples become alike in the table of sites; more gain, a norm, or shortcuts "
        "keep them apart."
    )
    source = "Poole et al. 2016, Exponential expressivity in deep neural networks through transient chaos"
    return [Finding("constant-output", severity, place, evidence, why, remedy, source)]


def _zero_head(reading: Reading) -> bool:
    """Whether the last weights are zero, as heads often begin."""
    heads = [node for node in reading.graph.nodes if node.kind == "weight"]
    if not heads or reading.logits is None or not reading.logits.any():
        return True
    return any(reading.parameters[name].norm == 0 for name in heads[-1].parameters if name in reading.parameters)


def unnormalised_input(reading: Reading) -> list[Finding]:
    for facts in reading.inputs:
        size = math.hypot(facts.mean, facts.std)
        if not facts.finite:
            continue
        evidence = {"mean": facts.mean, "std": facts.std, "least": facts.least, "most": facts.most}
        if size > LARGE_INPUT:
            why = "The input is far from mean 0 and standard deviation 1, for which weights are initialised."
        elif 0 < size < 1 / (10 * LARGE_INPUT):
            why = "The input is so small that biases outweigh it."
        elif facts.spread > SPREAD:
            evidence["spread"] = facts.spread
            why = "The features of the input have very different scales, so no one learning rate suits them all."
        elif facts.std == 0 or abs(facts.mean) > LARGE_INPUT * facts.std:
            why = "The input hardly varies around its mean."
        else:
            continue
        remedy = (
            "Subtract the training set's mean and divide by its standard deviation, feature by feature or "
            "channel by channel."
        )
        source = "LeCun et al. 1998, Efficient BackProp, section 4.3"
        return [Finding("unnormalised-input", "warning", facts.name, evidence, why, remedy, source)]
    return []
