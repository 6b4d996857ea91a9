"""The chapter's random figures, 11.1 and 11.2: the published value against the distribution over 500 draws."""

from collections.abc import Callable
from typing import Any

import torch

from verydeep.analysis import shatter, variance
from verydeep.analysis.draw import Draws
from verydeep.analysis.scalar_network import draw_networks
from verydeep.data.seed import generator
from verydeep.experiments.chapter.claims import BY_ID
from verydeep.experiments.chapter.figure import derivative_charts, variance_charts
from verydeep.experiments.experiment import Experiment, Results, Setting, Trial, Verdict
from verydeep.report.section import FAILS, HOLDS

NUM_DRAWS = 500

# claim -> (trial, key of its values)
SHATTER = {
    "fig11.1-shallow": "shallow",
    "fig11.1-plain24": "plain24",
    "fig11.1-plain50": "plain50",
    "fig11.1-plain100": "plain100",
    "fig11.1-residual100": "residual100",
    "corr-residual": "residual100",
}
VARIANCE = {
    "fig11.2-plain-1": ("plain", 1),
    "fig11.2-plain-10": ("plain", 10),
    "fig11.2-plain-50": ("plain", 50),
    "fig11.2-scaled-50": ("scaled", 50),
    "fig11.2-norm-1": ("norm", 1),
    "fig11.2-norm-50": ("norm", 50),
}


def judge_draws(identifier: str, draws: Draws, quantity: str) -> Verdict:
    """Whether the published value lies in the central 99 % of the draws."""
    low, high = draws.interval()
    independent = "" if draws.independent else f", drawn from a pool of {draws.pool}"
    return Verdict(
        HOLDS if draws.holds(BY_ID[identifier].published) else FAILS,
        draws.values.tolist(),
        quantity,
        f"median {draws.median:.4g}, central 99 % of {len(draws.values)} draws{independent}",
        (low, high),
    )


def _to_values(draws: Draws) -> dict[str, Any]:
    return {"values": draws.values.tolist(), "seed": draws.seed, "pool": draws.pool, "independent": draws.independent}


def _from_values(name: str, values: dict[str, Any]) -> Draws:

    fields = values | {"values": torch.tensor(values["values"], dtype=torch.float64)}
    return Draws(name, **fields)


def _shatter_trial(kind: str) -> Trial:
    cost = {"shallow": 1.0, "plain24": 2.0, "plain50": 3.0, "plain100": 5.0}.get(kind, 8.0)
    return Trial(kind, lambda seed: _to_values(shatter.draws(kind, num_draws=NUM_DRAWS, seed=seed)), cost=cost)


def _derivatives(seed: int) -> dict[str, Any]:
    """dy/dx of one network of each kind in the figure, over its largest absolute value."""
    inputs = torch.linspace(-2, 2, 256)
    derivatives = {}
    for kind in ("shallow", "plain100", "residual100"):
        network = draw_networks(kind, 1, generator=generator(seed))
        derivative = network.value_and_derivative(inputs)[1].flatten()
        derivatives[kind] = (derivative / derivative.abs().max()).tolist()
    return {"inputs": inputs.tolist(), "derivatives": derivatives}


def _judge_shatter(results: Results, setting: Setting) -> dict[str, Verdict]:
    return {
        identifier: judge_draws(identifier, _from_values(kind, results[kind][0]), "mean correlation over ten networks")
        for identifier, kind in SHATTER.items()
    }


def _variance_trial(kind: str) -> Trial:
    def measure(seed: int) -> dict[str, Any]:
        return {"variances": variance.stack_variances(kind, num_draws=NUM_DRAWS, seed=seed).tolist()}

    return Trial(kind, measure, cost=4.0)


def _judge_variance(results: Results, setting: Setting) -> dict[str, Verdict]:

    verdicts = {}
    for identifier, (kind, depth) in VARIANCE.items():
        values = torch.tensor(results[kind][0]["variances"], dtype=torch.float64)[:, depth]
        draws = Draws(identifier, values, seed=0, pool=len(values), independent=True)
        verdicts[identifier] = judge_draws(identifier, draws, f"variance after {depth} units")
    return verdicts


def _constant(trials: list[Trial]) -> Callable[[Setting], list[Trial]]:
    return lambda setting: trials


FIGURE_1 = Experiment(
    name="fig11.1",
    kind="stochastic",
    title="Figure 11.1: shattered gradients",
    trials=_constant(
        [
            *(_shatter_trial(kind) for kind in [*dict.fromkeys(SHATTER.values()), "residual100_unscaled"]),
            Trial("derivatives", _derivatives, cost=0.1),
        ]
    ),
    judge=_judge_shatter,
    charts=derivative_charts,
    claims=tuple(SHATTER),
    settings=(
        "Width 100, 256 inputs on [-2, 2], He's initialisation. With zero biases the derivative is constant on each "
        "side of 0: hidden biases have deviation 0.1, first-layer biases 1 (ours). Residual branches are scaled by "
        "1/sqrt(K); unscaled ones are shown beside."
    ),
)
FIGURE_2 = Experiment(
    name="fig11.2",
    kind="stochastic",
    title="Figure 11.2: variance by depth",
    trials=_constant([_variance_trial(kind) for kind in ("plain", "scaled", "norm", "zero_init")]),
    judge=_judge_variance,
    charts=variance_charts,
    claims=tuple(VARIANCE),
    settings="Width 100, 256 samples; each ReLU stands before its weight layer, so that a branch keeps its size.",
)
STOCHASTIC = (FIGURE_1, FIGURE_2)
