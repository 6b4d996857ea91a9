"""Paths: (11.2) and (11.4) against networks written out, in float64; the sums over paths against all subsets."""

from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verydeep import theory

SEEDS = st.integers(0, 2**32 - 1)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tanh_branches(seed: int, num_units: int, width: int) -> list:
    weights = random(seed, num_units, 2, width, width)
    return [lambda h, V=V, W=W: torch.tanh(h @ W.T) @ V.T for V, W in weights]


def residual_states(branches: list, x: Tensor) -> list[Tensor]:
    """h_0..h_K of h' = h + F(h)."""
    states = [x]
    for branch in branches:
        states.append(states[-1] + branch(states[-1]))
    return states


@given(seed=SEEDS, num_units=st.integers(0, 6), width=st.integers(1, 4))
def test_unravelled_sum_is_the_networks_output(seed, num_units, width):
    branches, x = tanh_branches(seed, num_units, width), random(seed, 3, width)
    terms = theory.unravelled_terms(branches, x)
    states = residual_states(branches, x)
    assert len(terms) == num_units + 1
    torch.testing.assert_close(sum(terms), states[-1], atol=1e-12, rtol=1e-12)
    for k, state in enumerate(states):  # h_K = h_k + the branches in between, for any k
        torch.testing.assert_close(state + sum(terms[k + 1 :]), states[-1], atol=1e-12, rtol=1e-12)


def test_unravelled_sum_of_three_units_as_it_is_printed():
    F1, F2, F3 = branches = tanh_branches(0, 3, 4)
    x = random(1, 2, 4)
    printed = [x, F1(x), F2(x + F1(x)), F3(x + F1(x) + F2(x + F1(x)))]
    for ours, theirs in zip(theory.unravelled_terms(branches, x), printed, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-13, rtol=1e-13)


@given(seed=SEEDS, num_units=st.integers(0, 5))
def test_terms_by_path_sum_to_the_output_of_every_network_of_some_units(seed, num_units):
    branches, x = tanh_branches(seed, num_units, 3), random(seed, 2, 3)
    terms = theory.path_terms(branches, x)
    assert len(terms) == 2**num_units
    for kept in theory.all_paths(num_units):
        within = sum(term for path, term in terms.items() if set(path) <= set(kept))
        output = residual_states([branches[unit - 1] for unit in kept], x)[-1]
        torch.testing.assert_close(within, output, atol=1e-11, rtol=1e-11)


@given(seed=SEEDS, num_units=st.integers(0, 5))
def test_terms_by_path_of_linear_branches_are_products_along_the_path(seed, num_units):
    matrices, x = random(seed, num_units, 3, 3), random(seed + 1, 3)
    terms = theory.path_terms([lambda h, A=A: A @ h for A in matrices], x)
    for path, term in terms.items():
        expected = x
        for unit in path:
            expected = matrices[unit - 1] @ expected
        torch.testing.assert_close(term, expected, atol=1e-10, rtol=1e-10)


@given(seed=SEEDS, num_units=st.integers(1, 6), width=st.integers(1, 4))
def test_product_of_jacobians_is_the_sum_over_all_paths(seed, num_units, width):
    jacobians = random(seed, num_units, width, width)
    whole = theory.jacobian_product(jacobians)
    terms = theory.path_jacobians(jacobians)
    by_length = theory.jacobian_by_length(jacobians)
    assert len(terms) == 2**num_units
    torch.testing.assert_close(sum(terms.values()), whole, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(by_length.sum(0), whole, atol=1e-9, rtol=1e-9)
    for length in range(num_units + 1):
        of_length = sum(term for path, term in terms.items() if len(path) == length)
        torch.testing.assert_close(by_length[length], of_length, atol=1e-9, rtol=1e-9)


def test_product_of_jacobians_is_the_derivative_of_the_network():
    """The order of the matrices is that of the units, the last on the left."""
    branches, x = tanh_branches(3, 4, 3), random(4, 3)
    states = residual_states(branches, x)
    jacobians = torch.stack(
        [torch.autograd.functional.jacobian(F, h) for F, h in zip(branches, states[:-1], strict=True)]
    )
    derivative = torch.autograd.functional.jacobian(lambda x: residual_states(branches, x)[-1], x)
    torch.testing.assert_close(theory.jacobian_product(jacobians), derivative, atol=1e-12, rtol=1e-12)
    J1, J2 = jacobians[0], jacobians[1]
    torch.testing.assert_close(theory.path_jacobians(jacobians)[1, 2], J2 @ J1)


def test_sixteen_units_have_65536_paths_that_sum_to_the_product():
    jacobians = 0.3 * random(5, 16, 2, 2)
    terms = theory.path_jacobians(jacobians)
    assert len(terms) == 65536
    torch.testing.assert_close(sum(terms.values()), theory.jacobian_product(jacobians), atol=1e-10, rtol=1e-10)


def test_a_thousand_units_by_length():
    jacobians = 0.01 * random(6, 1000, 2, 2)
    by_length = theory.jacobian_by_length(jacobians)
    torch.testing.assert_close(by_length.sum(0), theory.jacobian_product(jacobians), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("num_units", range(8))
def test_paths_are_counted_as_subsets_of_the_units(num_units):
    passed = list(product([0, 1], repeat=num_units))
    assert theory.num_paths(num_units) == len(passed) == sum(theory.paths_by_length(num_units))
    assert theory.paths_by_length(num_units) == [
        sum(sum(path) == length for path in passed) for length in range(num_units + 1)
    ]
    units = range(1, num_units + 1)
    assert theory.all_paths(num_units) == [c for n in range(num_units + 1) for c in combinations(units, n)]


@given(num_units=st.integers(0, 200), gain=st.floats(0, 10))
def test_distribution_of_path_lengths_has_its_mean(num_units, gain):
    shares = theory.path_length_distribution(num_units, branch_gain=gain)
    assert sum(shares) == pytest.approx(1)
    mean = sum(length * share for length, share in enumerate(shares))
    assert mean == pytest.approx(num_units * gain / (1 + gain), abs=1e-9)


def test_distribution_is_that_of_the_terms_of_a_scalar_chain():
    jacobians = torch.full((6, 1, 1), 0.25, dtype=torch.float64)
    by_length = theory.jacobian_by_length(jacobians).flatten()
    shares = theory.path_length_distribution(6, branch_gain=0.25)
    torch.testing.assert_close(by_length / by_length.sum(), torch.tensor(shares, dtype=torch.float64))
