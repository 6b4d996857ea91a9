"""Variance by depth against naive stacks, known growth, and the units of networks."""

import math

import pytest
import torch
import torchvision
from torch import nn

from tests.analysis.conftest import network
from verydeep import UsageError
from verydeep.analysis import variance
from verydeep.data.seed import generator


def naive(kind, *, num_units, width, batch_size, seed):
    """One stack in float64 from the weights of the first chunk of ten."""
    stream = generator(seed, 0)
    samples = torch.randn(10, width, batch_size, generator=stream)
    h = samples[0].double().T  # (N, D)
    variances = [h.var(correction=0)]
    for _ in range(num_units):
        if kind != "zero_init":
            first = torch.randn(10, width, width, generator=stream)[0].double() * math.sqrt(2 / width)
            second = torch.randn(10, width, width, generator=stream)[0].double() * math.sqrt(2 / width)
            start = nn.BatchNorm1d(width, affine=False).double()(h) if kind == "norm" else h
            branch = torch.relu(torch.relu(start) @ first.T) @ second.T
            h = h + branch / (math.sqrt(num_units) if kind == "scaled" else 1)
        variances.append(h.var(correction=0))
    return torch.stack(variances)


@pytest.mark.parametrize("kind", variance.STACKS)
def test_stacks_equal_naive_ones_in_double_precision(kind):
    options = dict(num_units=50, width=20, batch_size=16, seed=5)
    fast = variance.stack_variances(kind, num_draws=10, **options)
    assert fast.shape == (10, 51)
    # float32: 50 units of 1e-7 each, several operations a unit
    torch.testing.assert_close(fast[0], naive(kind, **options), rtol=1e-4, atol=0)


def test_mean_growth_is_that_of_the_closed_forms():
    after = {kind: variance.stack_variances(kind, num_draws=60, num_units=10)[:, -1].mean().item() for kind in
             ("plain", "scaled", "norm", "zero_init")}  # fmt: skip
    assert after["plain"] == pytest.approx(2**10, rel=0.4)  # log-normal over draws
    assert after["scaled"] == pytest.approx(1.1**10, rel=0.05)
    assert after["norm"] == pytest.approx(11, rel=0.05)
    assert after["zero_init"] == pytest.approx(1, rel=0.01)


def test_zero_branches_keep_the_variance_exactly():
    variances = variance.stack_variances("zero_init", num_draws=3, num_units=7)
    assert torch.equal(variances, variances[:, :1].expand(3, 8))


def test_draws_are_repeatable_and_chunks_differ():
    first = variance.stack_variances("plain", num_draws=20, num_units=2)
    assert torch.equal(first, variance.stack_variances("plain", num_draws=20, num_units=2))
    assert len(first[:, 2].unique()) == 20


def test_depths_beyond_the_figure_are_refused():
    with pytest.raises(UsageError, match="depth 51: the figure's stacks have 50 units; nearest 50"):
        variance.draws("plain", 51)
    with pytest.raises(UsageError, match="kind 'plane': unknown"):
        variance.draws("plane", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "published"),
    [("plain", {1: 2.0, 10: 1490, 50: 8e15}), ("scaled", {50: 2.6}), ("norm", {1: 2.1, 50: 48})],
)
def test_published_values_lie_in_the_interval(kind, published):
    for depth, value in published.items():
        assert variance.draws(kind, depth).holds(value)


@pytest.mark.parametrize("training", [True, False])
def test_variance_by_depth_is_that_of_each_units_output(model, batch, training):
    model.train(training)
    found = variance.variance_by_depth(model, batch[0])
    x, expected = model.stem(batch[0]), {}
    for i, stage in enumerate(model.stages):
        for j, unit in enumerate(stage):
            x = unit(x)
            expected[f"stages.{i}.{j}"] = x.double().var(correction=0).item()
    assert list(found) == list(expected)
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-6)


def test_branches_started_at_zero_keep_the_variance_within_a_stage(batch):
    found = variance.variance_by_depth(network(scale="zero_init"), batch[0])
    assert found["stages.0.0"] == found["stages.0.1"] == found["stages.0.2"]
    assert found["stages.1.0"] == found["stages.1.1"] != found["stages.0.0"]


def test_other_modules_can_count_as_units():
    model = torchvision.models.resnet18(weights=None)
    block = torchvision.models.resnet.BasicBlock
    found = variance.variance_by_depth(model, torch.randn(2, 3, 32, 32), unit_type=block)
    assert len(found) == 8
    with pytest.raises(UsageError, match="ResNet: has no ResidualUnit"):
        variance.variance_by_depth(model, torch.randn(2, 3, 32, 32))
