"""Adaptive gradient clipping: against its formula unit by unit, and timm's."""

import copy

import pytest
import torch
from timm.utils.agc import adaptive_clip_grad
from torch import Tensor, nn

from verydeep.nn.clip import clip_gradients_adaptively, unit_norms


def module_with_gradients() -> nn.Module:
    """Units whose gradients are far above, about at, and far below the bound; one is zero, one weight is zero."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(5, 4)).double()
    with torch.no_grad():
        module[0].weight[0] = 0
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter) * 0.02
        scale = torch.logspace(-3, 2, 8, dtype=torch.float64)
        module[0].weight.grad.mul_(scale.view(-1, 1, 1, 1))
        module[0].weight.grad[1] = 0
    return module


def naive(weight: Tensor, gradient: Tensor, *, clipping: float, eps: float) -> Tensor:
    units = [(weight, gradient)] if weight.dim() == 1 else list(zip(weight, gradient, strict=True))
    clipped = []
    for w, g in units:
        allowed = clipping * max(w.norm().item(), eps)
        clipped.append(g if g.norm() <= allowed else g * (allowed / g.norm()))
    return torch.stack(clipped).view_as(gradient)


@pytest.mark.parametrize("clipping", [0.001, 0.01, 0.1])
def test_equals_the_formula_and_timms(clipping):
    module = module_with_gradients()
    theirs = copy.deepcopy(module)
    for ours, other in zip(module.parameters(), theirs.parameters(), strict=True):
        other.grad = ours.grad.clone()
    expected = [naive(p.detach(), p.grad, clipping=clipping, eps=1e-3) for p in module.parameters()]
    changed = [not torch.equal(p.grad, e) for p, e in zip(module.parameters(), expected, strict=True)]
    assert any(changed)
    clip_gradients_adaptively(module.parameters(), clipping=clipping)
    adaptive_clip_grad(theirs.parameters(), clip_factor=clipping)
    for ours, other, want in zip(module.parameters(), theirs.parameters(), expected, strict=True):
        torch.testing.assert_close(ours.grad, want, atol=1e-14, rtol=1e-12)
        torch.testing.assert_close(ours.grad, other.grad, atol=1e-14, rtol=1e-12)


def test_a_gradient_within_its_bound_is_untouched_bit_for_bit():
    weight = torch.ones(4, 3, requires_grad=True)
    weight.grad = torch.full((4, 3), 1e-3)
    weight.grad[3] = 1.0
    clip_gradients_adaptively(weight)
    assert torch.equal(weight.grad[:3], torch.full((3, 3), 1e-3))
    torch.testing.assert_close(weight.grad[3].norm(), torch.tensor(0.01 * 3**0.5))


def test_weights_at_zero_can_move_and_a_missing_gradient_is_none():
    zero, unused = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, requires_grad=True)
    zero.grad = torch.ones(2, 3)
    clip_gradients_adaptively([zero, unused], clipping=0.5, eps=1e-2)
    torch.testing.assert_close(zero.grad.norm(dim=1), torch.full((2,), 0.5e-2))
    assert unused.grad is None


def test_one_value_a_channel_is_one_unit():
    gain = torch.arange(1.0, 5.0).view(4, 1, 1, 1)
    torch.testing.assert_close(unit_norms(gain), gain.norm())
    torch.testing.assert_close(unit_norms(torch.tensor(-2.0)), torch.tensor(2.0))
    assert unit_norms(torch.ones(4, 2, 3, 3)).shape == (4, 1, 1, 1)
