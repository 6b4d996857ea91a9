"""Weights in front of a norm: one step of SGD by autograd against the triangle, and where many steps lead."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from verydeep import theory

X = torch.randn(16, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
TARGET = torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
W = torch.randn(5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
RATES = st.floats(1e-4, 0.5)


def gradient(w: Tensor) -> Tensor:
    """Of a loss that sees the weights through a batch norm."""
    w = w.clone().requires_grad_()
    loss = (theory.batch_norm(X @ w).output - TARGET).pow(4).mean()
    return torch.autograd.grad(loss, w)[0]


def angle(a: Tensor, b: Tensor) -> float:
    across = b - (a @ b) / (a @ a) * a
    return math.atan2(across.norm().item(), ((a @ b) / a.norm()).item())


@given(a=st.floats(0.01, 100))
def test_scaled_weights_have_the_same_output_and_a_gradient_divided_by_the_scale(a):
    torch.testing.assert_close(theory.batch_norm(X @ (a * W)).output, theory.batch_norm(X @ W).output)
    torch.testing.assert_close(gradient(a * W), gradient(W) / a)
    assert (gradient(W) @ W).item() == pytest.approx(0, abs=1e-12)


@given(norm=st.floats(0.5, 20), lr=RATES, weight_decay=st.floats(0, 0.5))
def test_one_step_is_the_triangle(norm, lr, weight_decay):
    w = norm * W / W.norm()
    sphere_norm = gradient(W / W.norm()).norm().item()
    after = (1 - lr * weight_decay) * w - lr * gradient(w)
    options = dict(lr=lr, gradient_norm=sphere_norm, weight_decay=weight_decay)
    assert theory.norm_after_step(norm, **options) == pytest.approx(after.norm().item(), rel=1e-9)
    assert theory.step_angle(norm, **options) == pytest.approx(angle(w, after), rel=1e-6)


@given(norm=st.floats(3, 30), lr=st.floats(1e-4, 1e-2))
def test_angle_of_a_small_step_is_proportional_to_one_over_the_squared_norm(norm, lr):
    small = theory.step_angle(norm, lr=lr, gradient_norm=1.0)
    assert small == pytest.approx(theory.effective_lr(norm, lr=lr), rel=1e-4)
    assert theory.step_angle(norm / 2, lr=lr, gradient_norm=1.0) / small == pytest.approx(4, rel=1e-4)


@given(lr=st.floats(0.01, 0.5), weight_decay=st.floats(0.01, 0.5), gradient_norm=st.floats(0.1, 10))
def test_equilibrium_is_where_steps_lead_and_stay(lr, weight_decay, gradient_norm):
    options = dict(lr=lr, weight_decay=weight_decay, gradient_norm=gradient_norm)
    norm = theory.equilibrium_norm(**options)
    assert theory.norm_after_step(norm, **options) == pytest.approx(norm, rel=1e-12)
    turned = theory.step_angle(norm, **options)
    assert turned == pytest.approx(theory.equilibrium_angle(lr=lr, weight_decay=weight_decay), rel=1e-6)
    num_steps = int(20 / (lr * weight_decay))
    if num_steps < 20000:
        reached = theory.effective_lrs(3 * norm, num_steps=num_steps, **options)[-1]
        assert reached == pytest.approx(theory.effective_lr(norm, lr=lr), rel=1e-6)


def test_without_decay_the_norm_only_grows_and_with_decay_alone_the_effective_rate_does():
    grown = theory.effective_lrs(1.0, lr=0.1, gradient_norm=1.0, weight_decay=0.0, num_steps=100)
    assert all(a > b for a, b in pairwise(grown))
    decayed = theory.effective_lrs(1.0, lr=0.1, gradient_norm=0.0, weight_decay=0.1, num_steps=100)
    assert all(a < b for a, b in pairwise(decayed))
