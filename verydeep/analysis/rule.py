"""RULES: every rule by name, and which findings are symptoms of which. `judge` applies them to a reading."""

from collections.abc import Callable

from verydeep.analysis.finding import Finding, ranked
from verydeep.analysis.reading import Reading
from verydeep.analysis.rules import gradient, norm, signal, structure, training

# Deeper causes first: among findings of one gravity, the order in which to mend them.
RULES: dict[str, Callable[[Reading], list[Finding]]] = {
    "label-mismatch": training.label_mismatch,
    "norm-degenerate-batch": norm.norm_degenerate_batch,
    "double-softmax": training.double_softmax,
    "unnormalised-input": signal.unnormalised_input,
    "symmetric-init": gradient.symmetric_init,
    "frozen-parameter": gradient.frozen_parameter,
    "norm-stats-stale": norm.norm_stats_stale,
    "dead-branch": gradient.dead_branch,
    "shortcut-not-identity": structure.shortcut_not_identity,
    "nonnegative-branch": structure.nonnegative_branch,
    "missing-final-norm": structure.missing_final_norm,
    "variance-explosion": signal.variance_explosion,
    "variance-collapse": signal.variance_collapse,
    "saturated-activation": signal.saturated_activation,
    "dead-activation": signal.dead_activation,
    "nonfinite": signal.nonfinite,
    "no-shortcut": structure.no_shortcut,
    "shortcut-truncated": structure.shortcut_truncated,
    "raw-projection": structure.raw_projection,
    "double-norm": structure.double_norm,
    "norm-momentum": norm.norm_momentum,
    "blocked-gradient": gradient.blocked_gradient,
    "gradient-explosion": gradient.gradient_explosion,
    "gradient-vanishing": gradient.gradient_vanishing,
    "gradient-shattering": gradient.gradient_shattering,
    "constant-output": signal.constant_output,
    "bad-initial-loss": training.bad_initial_loss,
    "update-too-large": training.update_too_large,
    "update-too-small": training.update_too_small,
    "loss-not-decreasing": training.loss_not_decreasing,
}

_NUMBERS = frozenset(
    [
        "variance-explosion",
        "variance-collapse",
        "gradient-explosion",
        "gradient-vanishing",
        "gradient-shattering",
        "constant-output",
        "bad-initial-loss",
        "update-too-large",
        "update-too-small",
        "loss-not-decreasing",
    ]
)
_STEPS = frozenset({"update-too-large", "update-too-small", "loss-not-decreasing"})
_SILENT = frozenset({"blocked-gradient", "gradient-vanishing", "constant-output", "variance-collapse"}) | _STEPS

# cause -> its symptoms
EXPLAINS: dict[str, frozenset[str]] = {
    "label-mismatch": frozenset({"bad-initial-loss", "nonfinite"}) | _STEPS,
    "norm-degenerate-batch": _NUMBERS | {"blocked-gradient", "dead-activation", "saturated-activation", "nonfinite"},
    "double-softmax": frozenset({"gradient-vanishing", "bad-initial-loss", "saturated-activation"}) | _STEPS,
    "unnormalised-input": _NUMBERS | {"saturated-activation", "dead-activation", "nonfinite", "blocked-gradient"},
    "symmetric-init": _SILENT | {"dead-branch", "gradient-explosion", "variance-explosion", "bad-initial-loss"},
    "frozen-parameter": _STEPS | {"blocked-gradient"},
    "norm-stats-stale": _NUMBERS | {"saturated-activation", "dead-activation"},
    "dead-branch": _STEPS | {"blocked-gradient"},
    "shortcut-not-identity": _NUMBERS | {"no-shortcut", "dead-activation", "nonfinite"},
    "nonnegative-branch": frozenset(
        {"variance-explosion", "gradient-explosion", "bad-initial-loss", "dead-activation"}
    ),
    "missing-final-norm": frozenset({"bad-initial-loss"}) | _STEPS,
    "variance-explosion": (_NUMBERS - {"variance-collapse"})
    | {"saturated-activation", "dead-activation", "nonfinite", "blocked-gradient"},
    "variance-collapse": (_NUMBERS - {"variance-explosion"}) | {"blocked-gradient"},
    "saturated-activation": _SILENT | {"gradient-explosion", "gradient-shattering", "bad-initial-loss"},
    "dead-activation": _SILENT | {"bad-initial-loss", "dead-branch"},
    "nonfinite": (_NUMBERS - {"variance-explosion", "variance-collapse"}) | {"blocked-gradient"},
    "blocked-gradient": _STEPS,
    "constant-output": frozenset({"blocked-gradient"}) | _STEPS,
    "no-shortcut": frozenset({"gradient-explosion", "gradient-vanishing", "gradient-shattering", "constant-output"})
    | _STEPS,
    "gradient-vanishing": _STEPS | {"constant-output"},
    "gradient-explosion": _STEPS | {"gradient-shattering"},
    "update-too-large": frozenset({"loss-not-decreasing"}),
    "update-too-small": frozenset({"loss-not-decreasing"}),
}


def judge(reading: Reading) -> list[Finding]:
    """The findings of all rules, causes before symptoms."""
    found = [finding for rule in RULES.values() for finding in rule(reading)]
    return ranked(found, EXPLAINS, list(RULES))
