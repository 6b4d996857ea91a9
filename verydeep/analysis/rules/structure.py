"""Rules on how the network is put together: its shortcuts, and where norms and activations stand around the sums."""

import math

from verydeep.analysis.addition import Addition
from verydeep.analysis.finding import Finding, Severity
from verydeep.analysis.graph import Graph
from verydeep.analysis.operation import NONNEGATIVE, SATURATING
from verydeep.analysis.reading import Reading
from verydeep.analysis.rules.profile import shortest_path, site

HE2016 = "He et al. 2016, Identity Mappings in Deep Residual Networks"
# Plain networks: 34 layers train worse than 18, 56 worse than 20 (He et al. 2015). Healthy: 23 at most (MobileNetV2).
PLAIN, VERY_PLAIN = 30, 100
# |ln| of the product of shortcut gains; healthy within 1.5. Beyond 2^23, float32's digits, the first unit is lost in
# the rounding of the last sum; before, norms within the branches let a network train, though less well.
GAIN, BROKEN_GAIN = math.log(10), 23 * math.log(2)
SEVERAL = 4  # units: fewer are dimension changes, one a stage
POST_NORMS = 30  # layer norms after sums: encoders of 12 layers have 24 and train with warm-up
POST_BATCH_NORMS = 8
TRUNCATED, WORTH_KNOWING = 40, 8  # units: 50 (ResNet-152) train well, 54 and 333 lose to pre-activation (Table 3)
MAJORITY = 0.6


def no_shortcut(reading: Reading) -> list[Finding]:
    path = shortest_path(reading)
    if path <= PLAIN:
        return []
    severity: Severity = "error" if path > VERY_PLAIN else "warning"
    evidence = {
        "shortest path": float(path),
        "limit": float(PLAIN),
        "residual additions": float(len(reading.additions)),
    }
    why = (
        f"Every path from input to output passes {path} weights or more: nothing carries signal and gradient past them."
    )
    remedy = "Add the input of every two or three layers to their output, with nothing but an identity on the way."
    first = reading.trunk[0] if reading.trunk else reading.graph.outputs[0]
    return [
        Finding(
            "no-shortcut",
            severity,
            site(reading, first),
            evidence,
            why,
            remedy,
            "He et al. 2015, Deep Residual Learning",
        )
    ]


def shortcut_not_identity(reading: Reading) -> list[Finding]:
    same = [a for a in reading.additions if _same_shape(reading.graph, a)]
    gains = {a.node: _log_gain(reading, a) for a in same if {"scale", "gate", "dropout"} & set(a.on_shortcut)}
    gains |= {a.node: _log_scale_before(reading, a) for a in same if "scale" in a.before and a.node not in gains}
    total = sum(gains.values())
    source = f"{HE2016}, Table 1 and Eq. 8"
    remedy = "Leave nothing on the shortcut between additions: y = x + F(x)."
    if abs(total) > GAIN:
        first = next(a for a in same if a.node in gains)
        severity: Severity = "error" if abs(total) > BROKEN_GAIN else "warning"
        evidence = {
            "product of gains": math.exp(total),
            "shortcuts": float(len(gains)),
            "mean gain": math.exp(total / len(gains)),
        }
        why = (
            "What stands on the shortcuts multiplies the signal, and the gradient, once a unit: the product runs "
            "away with depth."
        )
        return [Finding("shortcut-not-identity", severity, first.site, evidence, why, remedy, source)]
    for what, sites in _obstacles(reading.graph, same).items():
        if len(sites) >= SEVERAL and len(sites) > len(same) / 2:
            evidence = {"shortcuts": float(len(sites)), "units": float(len(reading.additions))}
            why = f"A {what} stands on the shortcuts of units that do not change the dimension."
            return [Finding("shortcut-not-identity", "warning", sites[0], evidence, why, remedy, source)]
    return _normed_sums(reading, same)


def _same_shape(graph: Graph, addition: Addition) -> bool:
    """Whether the unit could have an identity: its input has the shape of its output."""
    return graph.nodes[addition.fork].shape == graph.nodes[addition.node].shape


def _log_gain(reading: Reading, addition: Addition) -> float:
    """ln of the root-mean-square gain of the shortcut."""
    place = reading.graph.nodes[addition.node].inputs.index(addition.shortcut)
    after, before = reading.value(addition.node, f"square{place}"), reading.value(addition.fork, "mean_square")
    if before is None and addition.previous is not None:
        before = reading.value(addition.previous, "mean_square")
    return 0.5 * math.log(after / before) if after and before else 0.0


def _log_scale_before(reading: Reading, addition: Addition) -> float:
    """ln of the gain of a constant scale on the sum before, which both paths take."""
    numbers = []
    index = addition.fork
    while index != addition.previous and addition.previous is not None:
        node = reading.graph.nodes[index]
        numbers.append(node.number if node.kind == "scale" else None)
        index = node.inputs[0]
    # a norm or a branch's own norm takes no notice of the scale, the shortcut does
    return sum(math.log(abs(number)) for number in numbers if number)


def _obstacles(graph: Graph, same: list[Addition]) -> dict[str, list[str]]:
    """What stands on the shortcuts -> sites of the additions."""
    found: dict[str, list[str]] = {"convolution": [], "norm": [], "activation": []}
    for addition in same:
        kinds = set(addition.on_shortcut)
        if addition.projection:
            found["convolution"].append(addition.site)
        elif "norm" in kinds:
            found["norm"].append(addition.site)
        elif "act" in kinds and "gate" not in kinds:
            found["activation"].append(addition.site)
    return found


def _normed_sums(reading: Reading, same: list[Addition]) -> list[Finding]:
    normed = [a for a in same if "norm" in a.before]
    batch = [a for a in normed if any("batch_norm" in name for name in _names_before(reading.graph, a))]
    if len(batch) < POST_BATCH_NORMS and len(normed) <= POST_NORMS:
        return []
    evidence = {"normed sums": float(len(normed)), "units": float(len(reading.additions))}
    why = (
        "A norm stands after each addition, where it scales the shortcut too, so the signal is not passed on as it is."
    )
    remedy = (
        "Move the norm into the branch, before its first weights (pre-activation, pre-norm), and put one "
        "norm at the end."
    )
    source = f"{HE2016}, Table 2; Xiong et al. 2020, On Layer Normalization in the Transformer Architecture"
    return [Finding("shortcut-not-identity", "warning", normed[0].site, evidence, why, remedy, source)]


def _names_before(graph: Graph, addition: Addition) -> list[str]:
    """Operations between the sum before and the fork."""
    names = []
    index = addition.fork
    while addition.previous is not None and index != addition.previous:
        names.append(graph.nodes[index].name)
        index = graph.nodes[index].inputs[0]
    return names


def nonnegative_branch(reading: Reading) -> list[Finding]:
    bad = []
    for addition in reading.additions:
        place = reading.graph.nodes[addition.node].inputs.index(addition.branch)
        least, most = (reading.value(addition.node, f"{key}{place}") for key in ("least", "most"))
        if least is not None and most is not None and least >= 0 and most > 0:
            bad.append(addition)
    if len(bad) < 2 or len(bad) < len(reading.additions) / 2:  # half: the feed-forward branches of a transformer
        return []
    evidence = {"branches": float(len(bad)), "units": float(len(reading.additions))}
    why = "These branches only add, never subtract, so the signal can only grow from unit to unit."
    remedy = "End the branch with weights or a norm, and put its activation before them."
    return [
        Finding(
            "nonnegative-branch",
            "warning",
            bad[0].site,
            evidence,
            why,
            remedy,
            f"{HE2016}, section 4.1 (ReLU before addition)",
        )
    ]


def shortcut_truncated(reading: Reading) -> list[Finding]:
    cut, bounded = [], False
    for addition in reading.additions:
        names = set(_names_before(reading.graph, addition))
        if (
            not addition.projection
            and "act" in addition.before
            and "norm" not in addition.before
            and names & (NONNEGATIVE | SATURATING)
        ):
            cut.append(addition)
            bounded |= bool(names & SATURATING)
    if len(cut) < WORTH_KNOWING:
        return []
    severity: Severity = "warning" if bounded or len(cut) > TRUNCATED else "info"
    shares = [reading.value(a.previous, "truncated") or 0.0 for a in cut if a.previous is not None]
    evidence = {"units": float(len(cut)), "share cut off": max(shares, default=0.0)}
    why = (
        "The activation after each addition bends the shortcut too: the gradient is multiplied by a slope below one, "
        "unit by unit."
        if bounded
        else "The ReLU after each addition cuts off what is negative of the shortcut too, once a unit."
    )
    remedy = (
        "Put norm and activation before the weights of the branch (full pre-activation), and one of each at the end."
    )
    return [Finding("shortcut-truncated", severity, cut[0].site, evidence, why, remedy, f"{HE2016}, Table 3")]


def missing_final_norm(reading: Reading) -> list[Finding]:
    graph, additions = reading.graph, reading.additions
    if not _norm_first(additions) or not graph.outputs:
        return []
    last = additions[-1]
    if graph.common_dominator(last.node, graph.outputs[0]) != last.node:
        return []
    rest = graph.lightest_path(last.node, graph.outputs[0])
    kinds = [graph.nodes[i].kind for i in rest if i != last.node]
    if "weight" not in kinds or "norm" in kinds[: kinds.index("weight")]:
        return []
    squares = [reading.value(a.node, "mean_square") or 0.0 for a in (additions[0], last)]
    evidence = {"units": float(len(additions)), "mean square of the first sum": squares[0], "of the last": squares[1]}
    why = (
        "Branches begin with a norm, and none stands after the last addition: the head sees a sum that grows "
        "with depth."
    )
    remedy = "Put a norm (and the activation) after the last addition, before pooling and head."
    return [
        Finding(
            "missing-final-norm",
            "warning",
            last.site,
            evidence,
            why,
            remedy,
            f"{HE2016}, appendix (the extra activation)",
        )
    ]


def _norm_first(additions: list[Addition]) -> bool:
    """Whether most units are pre-activated: the branch, or what both paths take, begins with a norm."""
    first = [a for a in additions if a.normed_first or (a.projection and "norm" in a.before)]
    return len(additions) >= SEVERAL - 1 and len(first) > MAJORITY * len(additions)


def raw_projection(reading: Reading) -> list[Finding]:
    if not _norm_first(reading.additions):
        return []
    changing = [a for a in reading.additions if a.projection and a.normed_first and not a.before]
    changing = [a for a in changing if not _same_shape(reading.graph, a)]
    raw = [a for a in changing if a.on_shortcut[0] == "conv"]
    pooled = [a for a in changing if a.on_shortcut[0] == "pool"]
    bad = raw or pooled
    severity: Severity = "warning" if raw else "info"  # coatnet and maxvit pool first, and train
    if not bad:
        return []
    evidence = {"projections": float(len(bad)), "units": float(len(reading.additions))}
    why = "The projection reads the sum as it is, while the branch reads it behind norm and activation."
    remedy = "In units that change the dimension, let branch and projection share the first norm and activation."
    source = f"{HE2016}, section 4.1 and the authors' code"
    return [Finding("raw-projection", severity, bad[0].site, evidence, why, remedy, source)]


def double_norm(reading: Reading) -> list[Finding]:
    graph = reading.graph
    pairs = []
    for node in graph.of_kind("norm"):
        before = node.inputs[0]
        while graph.nodes[before].kind in ("shape", "act", "dropout") and len(graph.users[before]) == 1:
            before = graph.nodes[before].inputs[0]
        if graph.nodes[before].kind == "norm" and len(graph.users[before]) == 1 and _divides(graph, before, node.index):
            pairs.append((before, node.index))
    if not pairs:
        return []
    evidence = {"pairs": float(len(pairs))}
    why = "One norm follows another with no weights between, so the first is undone but for its noise."
    remedy = "Remove one of them."
    return [Finding("double-norm", "warning", site(reading, pairs[0][1]), evidence, why, remedy, f"{HE2016}, appendix")]


def _divides(graph: Graph, *indices: int) -> bool:
    """Norms that subtract a mean or divide by a deviation; a unit vector behind a norm is a cosine head."""
    return all(graph.nodes[i].name not in ("normalize", "local_response_norm") for i in indices)
