"""Batch norm: against torch's own and autograd in float64, finite differences, and what it is blind to."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from verydeep import theory

SEEDS = st.integers(0, 2**32 - 1)
BATCHES = st.integers(3, 12)
EPS = st.sampled_from([0.0, 1e-5, 0.1])
TINY = 1e-300  # in place of 0, which torch refuses; lost in any variance


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=SEEDS, batch=BATCHES, a=st.floats(1e-3, 1e3), c=st.floats(-1e3, 1e3))
def test_scale_and_shift_of_the_input_change_nothing(seed, batch, a, c):
    """Exercise 11.3."""
    z = random(seed, batch, 3)
    torch.testing.assert_close(theory.batch_norm(a * z + c).output, theory.batch_norm(z).output, atol=1e-7, rtol=1e-7)


def test_eps_breaks_the_scale_invariance_but_not_the_shift():
    z = random(0, 8)
    output = theory.batch_norm(z, eps=0.1).output
    torch.testing.assert_close(theory.batch_norm(z + 3, eps=0.1).output, output)
    assert not torch.allclose(theory.batch_norm(3 * z, eps=0.1).output, output, rtol=1e-3)


@given(seed=SEEDS, batch=BATCHES, eps=EPS)
def test_forward_equals_torchs(seed, batch, eps):
    z, gamma, beta = random(seed, batch, 4), random(seed + 1, 4), random(seed + 2, 4)
    bn = theory.batch_norm(z, gamma=gamma, beta=beta, eps=eps)
    expected = F.batch_norm(z, None, None, gamma, beta, training=True, eps=eps or TINY)
    torch.testing.assert_close(bn.output, expected, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(bn.variance, z.var(0, correction=0))


@given(seed=SEEDS, batch=BATCHES, eps=EPS)
def test_backward_equals_autograd(seed, batch, eps):
    z, gamma, beta = random(seed, batch, 4), random(seed + 1, 4), random(seed + 2, 4)
    assume(z.var(0).min() > 1e-3)
    dy = random(seed + 3, batch, 4)
    variables = [variable.requires_grad_() for variable in (z, gamma, beta)]
    output = F.batch_norm(z, None, None, gamma, beta, training=True, eps=eps or TINY)
    expected = torch.autograd.grad(output, variables, dy)
    ours = theory.batch_norm_gradients(dy, z.detach(), gamma=gamma.detach(), eps=eps)
    for got, want in zip((ours.z, ours.gamma, ours.beta), expected, strict=True):
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@given(seed=SEEDS, batch=BATCHES, eps=EPS)
def test_backward_has_no_component_along_one_nor_along_z_hat(seed, batch, eps):
    z, g = random(seed, batch), random(seed + 1, batch)
    assume(z.var() > 1e-3)
    gradient = theory.batch_norm_backward(g, z, eps=eps)
    bn = theory.batch_norm(z, eps=eps)
    left = eps * (bn.variance + eps) ** -1.5 * (g * bn.normalized).sum()
    assert gradient.sum().item() == pytest.approx(0, abs=1e-9)
    assert (gradient * bn.normalized).sum().item() == pytest.approx(left.item(), abs=1e-9)


def test_chapters_gradient_equals_finite_differences():
    z, g = torch.tensor([2.0, 4.0, 6.0, 8.0], dtype=torch.float64), torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    step = 1e-5 * torch.eye(4, dtype=torch.float64)
    differences = [
        (g * (theory.batch_norm(z + d).normalized - theory.batch_norm(z - d).normalized)).sum() / 2e-5 for d in step
    ]
    torch.testing.assert_close(theory.batch_norm_backward(g, z), torch.stack(differences), atol=1e-9, rtol=1e-9)


@given(seed=SEEDS, eps=EPS)
def test_prediction_is_an_affine_map_that_folds_into_the_layer_before(seed, eps):
    x, W, c = random(seed, 5, 3), random(seed + 1, 4, 3), random(seed + 2, 4)
    mean, variance = random(seed + 3, 4), random(seed + 4, 4).square() + 0.1
    gamma, beta = random(seed + 5, 4), random(seed + 6, 4)
    expected = F.batch_norm(F.linear(x, W, c), mean, variance, gamma, beta, training=False, eps=eps or TINY)
    gain, shift = theory.prediction_affine(mean, variance, gamma=gamma, beta=beta, eps=eps)
    folded = F.linear(x, gain[:, None] * W, gain * c + shift)
    torch.testing.assert_close(folded, expected, atol=1e-9, rtol=1e-9)


def test_a_bias_before_it_has_no_effect_and_no_gradient():
    x, W, bias = random(0, 6, 3), random(1, 4, 3), random(2, 4).requires_grad_()
    output = theory.batch_norm(F.linear(x, W, bias)).output
    torch.testing.assert_close(output, theory.batch_norm(F.linear(x, W)).output)
    (gradient,) = torch.autograd.grad((output * random(3, 6, 4)).sum(), bias)
    torch.testing.assert_close(gradient, torch.zeros(4, dtype=torch.float64), atol=1e-12, rtol=0)
