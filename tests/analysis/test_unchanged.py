"""`unchanged` puts everything back, bit for bit, also after an error; every analysis does, and none leaks."""

import gc
import random

import numpy as np
import pytest
import torch
from torch import nn

from tests.analysis.conftest import network
from tests.analysis.fingerprint import bits, fingerprint
from verydeep.analysis import landscape, lesion, norm_gap, paths, reorder, shatter, variance
from verydeep.analysis.batch_norm import recalibrated
from verydeep.analysis.unchanged import unchanged
from verydeep.nn.norm import convert_batch_norm


def with_gradients(model: nn.Module) -> nn.Module:
    """Some parameters with gradients, some frozen, some modules in eval mode, a hook of the user's own."""
    parameters = list(model.parameters())
    for parameter in parameters[::2]:
        parameter.grad = torch.randn_like(parameter)
    parameters[1].requires_grad_(False)
    model.stages[0][1].eval()
    model.head.register_forward_hook(lambda module, inputs, output: None)
    return model


@torch.no_grad()
def meddle(model: nn.Module) -> None:
    """Change everything that can be changed."""
    with torch.enable_grad():
        model(torch.randn(4, 3, 8, 8)).sum().backward()
    convert_batch_norm(model, group_size=2)
    model.eval().requires_grad_(False)
    for i, tensor in enumerate((*model.parameters(), *model.buffers())):
        tensor.mul_(-1)
        tensor.grad = None if i % 3 else torch.ones_like(tensor)
    model.register_forward_hook(lambda module, inputs, output: output + 1)
    model.stages[0][0].branch = nn.Identity()
    model.extra = nn.Linear(2, 2)
    model.register_buffer("other", torch.zeros(1))
    model.note = "new"
    random.random()
    np.random.rand()


@pytest.mark.parametrize("error", [None, KeyError, KeyboardInterrupt])
def test_everything_is_put_back(model, error):
    with_gradients(model)
    before = fingerprint(model)
    if error is None:
        with unchanged(model):
            meddle(model)
            assert fingerprint(model) != before
    else:
        with pytest.raises(error), unchanged(model):
            meddle(model)
            raise error
    assert fingerprint(model) == before


@pytest.mark.parametrize("value", [-0.0, float("nan")])
def test_signs_of_zero_and_nan_are_put_back(value):
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, value)
    before = bits(model.weight)
    with unchanged(model), torch.no_grad():
        model.weight.add_(0.0).nan_to_num_()
        assert bits(model.weight) != before
    assert bits(model.weight) == before


def test_handles_of_hooks_still_remove_them():
    model = nn.Linear(2, 1)
    handle = model.register_forward_hook(lambda module, inputs, output: output + 1)
    with unchanged(model):
        handle.remove()
    assert len(model._forward_hooks) == 1
    handle.remove()
    assert len(model._forward_hooks) == 0


def test_a_graph_recorded_before_can_be_differentiated_after(model):
    model.eval()
    loss = model(torch.randn(4, 3, 8, 8)).sum()
    with unchanged(model):
        model(torch.randn(4, 3, 8, 8))
    loss.backward()
    assert next(model.parameters()).grad is not None


def test_tied_parameters_stay_tied():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    value = model[0].weight.detach().clone()
    with unchanged(model), torch.no_grad():
        model[0].weight.zero_()
    assert model[1].weight is model[0].weight
    assert torch.equal(model[0].weight, value)


def recalibrate(model, batch):
    with recalibrated(model, [batch[0]]):
        model(batch[0])


ANALYSES = {
    "input_gradients": lambda m, b: shatter.input_gradients(m, b[0]),
    "ensemble_gradients": lambda m, b: shatter.ensemble_gradients([m, m], b[0]),
    "gradient_correlation": lambda m, b: shatter.gradient_correlation(m, b[0]),
    "variance_by_depth": lambda m, b: variance.variance_by_depth(m, b[0]),
    "sampled_paths": lambda m, b: paths.sampled_paths(m, *b, num_paths=1),
    "summed_paths": lambda m, b: paths.summed_paths(m, *b),
    "single_deletions": lambda m, b: lesion.single_deletions(m, b),
    "random_deletions": lambda m, b: lesion.random_deletions(m, b, num_deleted=2, num_draws=1),
    "random_reorderings": lambda m, b: reorder.random_reorderings(m, b, num_swaps=2, num_draws=1),
    "loss_line train": lambda m, b: landscape.loss_line(m, b, num_points=3),
    "loss_line recalibrate": lambda m, b: landscape.loss_line(m, b, num_points=3, batch_norm="recalibrate"),
    "loss_plane eval": lambda m, b: landscape.loss_plane(m, b, num_points=3, batch_norm="eval"),
    "norm_gaps": lambda m, b: norm_gap.norm_gaps(m, b, batch_sizes=[4], momenta=[0.1], num_steps=2, num_batches=1),
    "recalibrated": recalibrate,
}


@pytest.mark.parametrize("name", ANALYSES)
def test_analysis_leaves_the_model_as_it_was(name, batch):
    model = with_gradients(network(stochastic_depth=0.5))
    before = fingerprint(model)
    ANALYSES[name](model, batch)
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", ANALYSES)
def test_analysis_that_raises_leaves_the_model_as_it_was(name, batch):
    """The head's linear layer refuses the features: whatever the analysis set up by then must go."""
    model = with_gradients(network(stochastic_depth=0.5))
    model.head.linear.in_features = 3
    model.head.linear.weight = nn.Parameter(torch.randn(10, 3))
    before = fingerprint(model)
    with pytest.raises(RuntimeError):
        ANALYSES[name](model, batch)
    assert fingerprint(model) == before


@pytest.mark.parametrize("name", ["sampled_paths", "single_deletions", "norm_gaps", "loss_line train"])
def test_a_hundred_analyses_leak_nothing(name):
    model = network(stage_units=(1, 1), width=1)
    batch = torch.randn(4, 3, 2, 2), torch.zeros(4, dtype=torch.int64)

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    before = fingerprint(model)
    ANALYSES[name](model, batch)
    count = tensors()
    for _ in range(100):
        ANALYSES[name](model, batch)
    assert tensors() <= count
    assert fingerprint(model) == before
