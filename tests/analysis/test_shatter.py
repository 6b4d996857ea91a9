"""Derivatives in one pass against autograd one by one, and the figure's networks."""

import math

import pytest
import torch
from torch import nn

from verydeep import UsageError
from verydeep.analysis import shatter
from verydeep.analysis.scalar_network import KINDS, ScalarKind, draw_networks
from verydeep.nn.unit import ResidualUnit

INPUTS = torch.linspace(-2, 2, 33, dtype=torch.float64)


def one_by_one(module, inputs):
    gradients = []
    for value in inputs:
        x = value[None].clone().requires_grad_()
        gradients.append(torch.autograd.grad(module(x).sum(), x)[0][0])
    return torch.stack(gradients)


def double_networks(kind, *, width=12, num_networks=3):
    generator = torch.Generator().manual_seed(0)
    return draw_networks(kind, num_networks, generator=generator, dtype=torch.float64, width=width)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_derivatives_equal_backward_ones(kind):
    networks = double_networks(kind)
    value, derivative = networks.value_and_derivative(INPUTS)
    for i in range(3):
        module = networks.module(i)
        torch.testing.assert_close(value[i], module(INPUTS[:, None])[:, 0])
        torch.testing.assert_close(derivative[i], one_by_one(module, INPUTS[:, None])[:, 0])


@pytest.mark.parametrize(
    ("kind", "linears", "units"), [("shallow", 2, 0), ("plain24", 25, 0), ("residual100", 202, 100)]
)
def test_modules_have_the_layers_that_the_kind_says(kind, linears, units):
    module = double_networks(kind, num_networks=1).module(0)
    assert sum(isinstance(layer, nn.Linear) for layer in module.modules()) == linears
    assert sum(isinstance(layer, ResidualUnit) for layer in module.modules()) == units


def test_weights_are_hes_and_biases_as_stated():
    networks = draw_networks("plain24", 20, generator=torch.Generator().manual_seed(0))
    stds = [networks.first, networks.first_bias, networks.weights, networks.biases, networks.last]
    expected = [math.sqrt(2), 1.0, math.sqrt(0.02), 0.1, math.sqrt(0.02)]
    # 2000 values: the std of a std is 1.6 %
    assert [tensor.std().item() for tensor in stds] == pytest.approx(expected, rel=0.06)
    assert KINDS["residual100"].branch_scale == pytest.approx(0.1)
    assert KINDS["residual100_unscaled"].branch_scale == 1


def test_float32_gives_the_correlations_of_float64():
    networks = draw_networks("plain100", 4, generator=torch.Generator().manual_seed(0))
    tensors = {name: value.double() for name, value in vars(networks).items() if isinstance(value, torch.Tensor)}
    exact = type(networks)(networks.kind, **tensors)
    inputs = torch.linspace(-2, 2, 256)
    single, double = (
        shatter.neighbour_correlation(n.value_and_derivative(x)[1])
        for n, x in ((networks, inputs), (exact, inputs.double()))
    )
    torch.testing.assert_close(single, double, atol=2e-3, rtol=0)  # the spread over networks is 0.2


def test_correlation_equals_corrcoef():
    gradients = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64).cumsum(1)
    expected = [torch.corrcoef(torch.stack((row[:-1], row[1:])))[0, 1] for row in gradients]
    torch.testing.assert_close(shatter.neighbour_correlation(gradients), torch.stack(expected))


def test_correlation_of_an_alternating_and_of_a_constant_gradient():
    assert shatter.neighbour_correlation(torch.tensor([1.0, -1.0] * 8)).item() == pytest.approx(-1, abs=1e-9)
    assert shatter.neighbour_correlation(torch.ones(8)).isnan()


def test_gradients_of_images_equal_those_one_by_one(model, batch):
    inputs = shatter.line(batch[0][0], batch[0][1], num_points=6)
    gradients = shatter.input_gradients(model, inputs)
    model.eval()
    expected = one_by_one(model, inputs)
    torch.testing.assert_close(gradients, expected, atol=1e-6, rtol=1e-4)
    pairs = torch.stack((expected[:-1].flatten(), expected[1:].flatten())).double()
    assert shatter.gradient_correlation(model, inputs) == pytest.approx(torch.corrcoef(pairs)[0, 1].item(), abs=1e-4)


def test_gradients_are_taken_also_where_they_are_switched_off(model, batch):
    with torch.no_grad():
        assert shatter.input_gradients(model, batch[0]).abs().sum() > 0


def test_ensemble_equals_its_members():
    networks = double_networks("residual100", width=5)
    modules = [networks.module(i) for i in range(3)]
    gradients = shatter.ensemble_gradients(modules, INPUTS[:, None])
    torch.testing.assert_close(gradients[..., 0], networks.value_and_derivative(INPUTS)[1])
    with pytest.raises(UsageError, match="at least one"):
        shatter.ensemble_gradients([], INPUTS)


def test_ensemble_of_networks_with_batch_norm(model, batch):
    gradients = shatter.ensemble_gradients([model, model], batch[0])
    torch.testing.assert_close(gradients[1], shatter.input_gradients(model, batch[0]), atol=1e-6, rtol=1e-4)


def test_draws_are_repeatable_and_say_how_they_were_drawn():
    first, again = (shatter.draws("shallow", num_draws=20, seed=3) for _ in range(2))
    other = shatter.draws("shallow", num_draws=20, seed=4)
    assert torch.equal(first.values, again.values) and not torch.equal(first.values, other.values)
    assert first.to_dict() | {"median": 0, "interval": 0} == {
        "name": "shallow", "median": 0, "interval": 0, "num_draws": 20, "pool": 200, "independent": True, "seed": 3,
    }  # fmt: skip
    pooled = shatter.draws("plain24", num_draws=20, num_networks=12)
    assert (pooled.pool, pooled.independent, len(pooled.values)) == (12, False, 20)


def test_draws_refuse_unknown_kinds_and_small_pools():
    with pytest.raises(UsageError, match=r"kind 'plain25': unknown; nearest: .*plain24"):
        shatter.draws("plain25")
    with pytest.raises(UsageError, match="num_networks 9: a draw is a mean over 10"):
        shatter.draws("plain24", num_networks=9)


def test_depth_shatters_gradients_and_scaled_branches_keep_them():
    means = {kind: shatter.network_correlations(kind, 10).mean().item() for kind in KINDS}
    assert means["shallow"] > 0.95 and means["residual100"] > 0.93
    assert means["shallow"] > means["plain24"] > means["plain50"] > means["plain100"]
    assert means["residual100_unscaled"] < 0.8


def test_without_biases_the_derivative_takes_two_values():
    networks = double_networks("plain24", num_networks=1)
    for tensor in (networks.first_bias, networks.biases):
        tensor.zero_()
    derivative = networks.value_and_derivative(torch.linspace(-2, 2, 64, dtype=torch.float64))[1][0]
    assert len(derivative.mul(1e9).round().unique()) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "published"),
    [("shallow", 0.98), ("plain24", 0.90), ("plain50", 0.70), ("plain100", 0.50), ("residual100", 0.97)],
)
def test_published_values_lie_in_the_interval(kind, published):
    assert shatter.draws(kind).holds(published)


def test_the_residual_kind_counts_two_matrices_a_unit():
    assert ScalarKind(7, residual=True).num_matrices == 14
    assert ScalarKind(7).num_matrices == 6
