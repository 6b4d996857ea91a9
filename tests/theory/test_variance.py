"""Variance laws and chains: against (11.5) step by step, the bound, and stacks that are simulated."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verydeep import theory

UNITS = st.integers(1, 400)


@given(num_units=UNITS, gain=st.floats(0, 1))
def test_laws_accumulate_by_11_5(num_units, gain):
    unscaled = [theory.unscaled_variance(k, branch_gain=gain) for k in range(num_units + 1)]
    scaled = [theory.scaled_variance(k, num_units, branch_gain=gain) for k in range(num_units + 1)]
    normalized = [theory.normalized_variance(k, branch_variance=gain) for k in range(num_units + 1)]
    assert theory.accumulated_variance([gain * v for v in unscaled[:-1]]) == pytest.approx(unscaled)
    assert theory.accumulated_variance([gain * v / num_units for v in scaled[:-1]]) == pytest.approx(scaled)
    assert theory.accumulated_variance([gain] * num_units) == pytest.approx(normalized)
    assert theory.accumulated_variance([0.0] * num_units) == [
        theory.zero_init_variance(k) for k in range(num_units + 1)
    ]


@given(num_units=UNITS, gain=st.floats(0.01, 3))
def test_scaled_variance_grows_with_the_number_of_units_towards_its_bound(num_units, gain):
    here = theory.scaled_variance(num_units, num_units, branch_gain=gain)
    deeper = theory.scaled_variance(num_units + 1, num_units + 1, branch_gain=gain)
    assert here < deeper < theory.scaled_variance_bound(branch_gain=gain)
    assert theory.scaled_variance(10**7, 10**7, branch_gain=gain) == pytest.approx(math.exp(gain), rel=1e-5)


def simulated(kind: str, *, num_units: int, width: int = 400, samples: int = 400, draws: int = 4) -> float:
    """Variance after `num_units` units whose branches are W relu(W relu(x)) with He's weights, mean of a few draws."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for _ in range(draws):
        h = torch.randn(samples, width, generator=generator)
        for _ in range(num_units):
            x = theory.normalize(h, "batch") if kind == "norm" else h
            for _ in range(2):
                x = torch.relu(x) @ (torch.randn(width, width, generator=generator) * math.sqrt(2 / width))
            h = h + x * {"inverse_sqrt": 1 / math.sqrt(num_units), "zero_init": 0.0}.get(kind, 1.0)
        total += h.var(correction=0).item()
    return total / draws


@pytest.mark.parametrize("kind", theory.VARIANCE_LAWS)
def test_law_is_what_a_stack_shows(kind):
    law = theory.VARIANCE_LAWS[kind](5, 5)
    assert simulated(kind, num_units=5) == pytest.approx(law, rel=0.08)


@given(c=st.lists(st.floats(-0.9, 0.9), max_size=50))
def test_residual_chain_is_the_scalar_case_of_11_4(c):
    jacobians = torch.tensor(c, dtype=torch.float64).view(-1, 1, 1)
    assert theory.residual_chain(c) == pytest.approx(theory.jacobian_product(jacobians).item(), rel=1e-12)
    assert theory.plain_chain([1 + d for d in c]) == theory.residual_chain(c)
