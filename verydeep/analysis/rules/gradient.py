"""Rules on the gradient: its size over depth, what it does not reach, and weights that it cannot tell apart."""

import math

from verydeep.analysis.addition import Addition
from verydeep.analysis.finding import Finding, Severity
from verydeep.analysis.reading import NEAR, Parameter, Reading
from verydeep.analysis.rules.profile import gradient_profile, log_slope, shortest_path, site

# Norms of dL/d(output) of whole layers, first over last. Healthy: 5e-3 (AlexNet) to 7e2 (MNASNet), and in residual
# networks with norms more, by their number of units to the power 1.5 (333 of them: 7e3 on 32x32 images, 4e4 on 8x8),
# where plain ones grow exponentially.
EXPLODED, PER_UNIT, BROKEN = 1e3, 10.0, 1e6
UNDERFLOW = 1e-20  # of the last: on the way to 1e-45, float32's smallest; what cuts a gradient off is not so gradual
VANISHED, GONE = 1e-3, 1e-6  # at 1e-6 an update of the first layers is below float32's rounding of their weights
DEEP = 25  # weights on the shortest path: healthy networks without shortcuts have at most 23
SHATTERED = (
    0.5  # correlation of gradients at a distance of 1e-3; plain networks fall as 2^-depth (Balduzzi et al. 2017)
)
LITTLE = 0.1
GLOROT = "Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks"


def gradient_explosion(reading: Reading) -> list[Finding]:
    profile = gradient_profile(reading)
    if len(profile) < 2 or profile[-1][1] <= 0:
        return []
    ratio = profile[0][1] / profile[-1][1]
    if not ratio > max(EXPLODED, PER_UNIT * len(reading.additions) ** 1.5):
        return []
    severity: Severity = "error" if ratio > BROKEN else "warning"
    evidence = {"first over last": ratio, "factor a layer": math.exp(-log_slope(reading, profile))}
    why = (
        "The gradient grows on its way back, so that one learning rate is too large for the first layers or "
        "too small for the last."
    )
    remedy = "Add shortcuts or pre-activation, scale branches down, or initialise weights with variance 2/fan-in."
    source = "Yang et al. 2019, A Mean Field Theory of Batch Normalization"
    return [Finding("gradient-explosion", severity, site(reading, profile[0][0]), evidence, why, remedy, source)]


def gradient_vanishing(reading: Reading) -> list[Finding]:
    profile = gradient_profile(reading)
    if len(profile) < 2 or not 0 < profile[-1][1] < math.inf:
        return []
    first = _least(profile) if underflows(reading) else profile[0][1]
    ratio = first / profile[-1][1]
    if not 0 < ratio < VANISHED:
        return []
    severity: Severity = "error" if ratio < GONE else "warning"
    evidence = {"first over last": ratio, "factor a layer": math.exp(-log_slope(reading, profile))}
    why = "The gradient shrinks on its way back, so that the first layers hardly learn."
    remedy = (
        "Add identity shortcuts, use ReLU in place of sigmoid or tanh, or initialise weights with variance 2/fan-in."
    )
    return [Finding("gradient-vanishing", severity, site(reading, profile[0][0]), evidence, why, remedy, GLOROT)]


def _least(profile: list[tuple[int, float]]) -> float:
    return min(value for _, value in profile if value > 0)


def underflows(reading: Reading) -> bool:
    """Whether the gradient is zero in the first layers because it has shrunk below what numbers can hold."""
    profile = gradient_profile(reading)
    last = profile[-1][1] if profile else 0.0
    return 0 < last < math.inf and profile[0][1] == 0 and _least(profile) < UNDERFLOW * last


def gradient_shattering(reading: Reading) -> list[Finding]:
    if reading.shatter is None or not reading.shatter < SHATTERED:
        return []
    deep = shortest_path(reading) > DEEP
    if not deep and reading.shatter > LITTLE:
        return []
    severity: Severity = "warning" if deep else "info"
    place = reading.inputs[0].name if reading.inputs else "input"
    evidence = {"correlation": reading.shatter, "distance": NEAR, "shortest path": float(shortest_path(reading))}
    why = "Inputs that hardly differ have unrelated gradients, so a step that helps one batch says little of the next."
    remedy = (
        "Add identity shortcuts, and make branches small against them (norm first, or a scale that begins near zero)."
    )
    source = "Balduzzi et al. 2017, The Shattered Gradients Problem"
    return [Finding("gradient-shattering", severity, place, evidence, why, remedy, source)]


def dead_branch(reading: Reading) -> list[Finding]:
    dead = []
    blocked = set(reading.blocked)
    for addition in reading.additions:
        place = reading.graph.nodes[addition.node].inputs.index(addition.branch)
        weights = {
            name
            for name in _in_branches(reading, [addition])
            if name in reading.parameters and reading.parameters[name].matrix
        }
        silent = reading.value(addition.node, f"square{place}") == 0
        if silent and weights and weights <= blocked and "dropout" not in addition.in_branch:
            dead.append(addition)
    if not dead:
        return []
    evidence = {"dead branches": float(len(dead)), "branches": float(len(reading.additions))}
    why = "The branch adds exactly zero and none of its weights has a gradient, so it will do so for ever."
    remedy = (
        "Where the branch is to begin at zero, zero its last convolution or a scalar, not the norm before a ReLU: "
        "a ReLU passes no gradient at exactly zero."
    )
    source = "Goyal et al. 2017, section 5.1; Zhang et al. 2019, Fixup"
    return [Finding("dead-branch", "error", dead[0].site, evidence, why, remedy, source)]


def blocked_gradient(reading: Reading) -> list[Finding]:
    if reading.loss is None or not math.isfinite(reading.loss):
        return []
    primary = _reaching(reading, reading.graph.outputs[:1])
    others = _reaching(reading, reading.graph.outputs[1:])
    trainable = [p for p in reading.parameters.values() if p.trainable]
    cut = [p for p in trainable if p.gradient is None and p.name in primary]
    unused = [p for p in trainable if p.gradient is None and p.name not in primary and p.name not in others]
    zero = [] if underflows(reading) else [reading.parameters[name] for name in reading.blocked]
    found = []
    if cut or zero:
        bad = cut or zero
        weights = [p for p in trainable if p.matrix]
        severity: Severity = "error" if any(p.matrix for p in bad) else "warning"
        evidence = {
            "without gradient": float(len(cut)),
            "zero gradient": float(len(zero)),
            "weights": float(len(weights)),
        }
        why = "The output depends on these parameters, but no gradient of the loss reaches them."
        remedy = (
            "Look between this layer and the loss for detach, no_grad, .data, argmax or rounding, or a layer "
            "that passes nothing."
        )
        found.append(Finding("blocked-gradient", severity, bad[0].name, evidence, why, remedy, "the chain rule"))
    elif unused:
        evidence = {"unused": float(len(unused)), "parameters": float(len(trainable))}
        why = "These parameters are not used on the way to the loss, so they will never learn."
        remedy = "Call the module in forward, add its output to the loss, or remove it."
        source = "the chain rule"
        found.append(Finding("blocked-gradient", "warning", unused[0].name, evidence, why, remedy, source, alone=True))
    return found


def _reaching(reading: Reading, outputs: list[int]) -> set[str]:
    """Names of the parameters that the outputs are made of."""
    seen: set[int] = set()
    stack = list(outputs)
    while stack:
        index = stack.pop()
        if index not in seen:
            seen.add(index)
            stack.extend(reading.graph.nodes[index].inputs)
    return {name for index in seen for name in reading.graph.nodes[index].parameters}


def frozen_parameter(reading: Reading) -> list[Finding]:
    weights = _weights_in_order(reading)
    frozen = [p for p in weights if not p.trainable]
    trial = reading.trial
    source = "requires_grad and torch.optim"
    strangers = reading.graph.strangers
    if strangers:
        why = "The model computes with trainable tensors that are not among its parameters: no optimizer is given them."
        remedy = "Keep layers in nn.ModuleList or nn.ModuleDict, and tensors as nn.Parameter attributes of the module."
        evidence = {"uses": float(len(strangers)), "parameters": float(len(reading.parameters))}
        return [Finding("frozen-parameter", "error", strangers[0], evidence, why, remedy, "torch.nn.ModuleList")]
    if weights and len(frozen) == len(weights):
        why = "No weight of the model is trainable."
        remedy = "Set requires_grad on the parameters that are to learn."
        return [
            Finding("frozen-parameter", "error", weights[0].name, {"frozen": float(len(frozen))}, why, remedy, source)
        ]
    if trial is not None and trial.missing:
        evidence = {"missing": float(len(trial.missing)), "parameters": float(len(reading.parameters))}
        whole = len(trial.missing) > len(reading.parameters) / 2 or trial.strange
        why = "The optimizer does not have these parameters, so they will never change."
        remedy = "Make the optimizer after the model is complete and moved, from all of its parameters."
        severity: Severity = "error" if whole else "warning"
        return [Finding("frozen-parameter", severity, trial.missing[0], evidence, why, remedy, source)]
    if not frozen:
        return []
    evidence = {"frozen": float(len(frozen)), "weights": float(len(weights))}
    first = next(place for place, p in enumerate(weights) if p.trainable)
    late = [p for p in weights[first:] if not p.trainable]
    if late:
        why = "Weights that come after trainable ones are frozen: a fine-tuning freezes the beginning of a network."
        remedy = "Set requires_grad on them, unless they are to stay as they are."
        return [Finding("frozen-parameter", "warning", late[0].name, evidence, why, remedy, source)]
    why = "The first layers are frozen, as in a fine-tuning."
    return [Finding("frozen-parameter", "info", frozen[0].name, evidence, why, "Nothing, if this is meant.", source)]


def _weights_in_order(reading: Reading) -> list[Parameter]:
    """The weights of linear maps in running order."""
    names = dict.fromkeys(name for node in reading.graph.of_kind("weight") for name in node.parameters)
    return [reading.parameters[n] for n in names if n in reading.parameters and reading.parameters[n].matrix]


def symmetric_init(reading: Reading) -> list[Finding]:
    used = {
        name: node
        for node in reading.graph.of_kind("weight")
        if "embedding" not in node.name
        for name in node.parameters
    }
    weights = [p for p in _weights_in_order(reading) if p.name in used and p.trainable]
    alike = [p for p in weights if p.equal_rows and p.norm > 0]
    trunk = [i for i in reading.trunk if any(reading.parameters[n].matrix for n in reading.graph.nodes[i].parameters)]
    zero = [p for p in weights if p.norm == 0]
    zero_trunk = [p for p in zero if used[p.name].index in trunk]
    branches = _in_branches(reading, reading.additions)  # zero there, they are a matter of `dead_branch`
    stuck = [p for p in zero if p.name in reading.blocked and p.name not in branches]
    bad = alike or (zero_trunk if len(zero_trunk) > 1 else stuck)
    if not bad:
        return []
    for_ever = not alike or any(p.gradient is not None and p.gradient.equal_rows for p in alike) or len(alike) > 1
    severity: Severity = "error" if for_ever else "warning"
    evidence = {"layers alike": float(len(bad)), "weights": float(len(weights))}
    why = "All output units of this layer have the same weights, so they compute the same and learn the same."
    remedy = (
        "Initialise weights at random, with variance 2/fan-in; only biases, scales and last layers may begin constant."
    )
    source = "Goodfellow et al. 2016, Deep Learning, section 8.4"
    return [Finding("symmetric-init", severity, bad[0].name, evidence, why, remedy, source)]


def _in_branches(reading: Reading, additions: list[Addition]) -> set[str]:
    """Names of the parameters in the branches of these additions."""
    graph = reading.graph
    inside = [i for a in additions for i in (a.branch, *graph.between(a.fork, a.branch))]
    return {name for i in inside for name in graph.nodes[i].parameters}
