"""Directions, losses along them against a naive loop, batch norm's three ways, and roughness of known surfaces."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.analysis.conftest import network
from tests.analysis.fingerprint import fingerprint
from verydeep import UsageError
from verydeep.analysis import landscape


def test_each_filter_has_the_norm_of_the_models(model):
    direction = landscape.filter_direction(model, seed=0)
    assert list(direction) == [name for name, _ in model.named_parameters()]
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            assert not direction[name].any()
            continue
        norms = direction[name].flatten(1).norm(dim=1)
        torch.testing.assert_close(norms, parameter.flatten(1).norm(dim=1))
        cosine = F.cosine_similarity(direction[name].flatten(), parameter.flatten(), dim=0)
        assert cosine.abs() < 0.9


def test_directions_are_functions_of_the_seed(model):
    first, again, other = (landscape.filter_direction(model, seed=seed)["stem.conv.weight"] for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def naive_losses(model, batch, direction, positions, *, training):
    losses = []
    for a in positions.tolist():
        twin = copy.deepcopy(model).train(training)
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                parameter += a * direction[name]
            losses.append(F.cross_entropy(twin(batch[0]), batch[1]).item())
    return losses


@pytest.mark.parametrize(("mode", "training"), [("train", True), ("eval", False)])
def test_losses_on_a_line_equal_those_of_moved_copies(model, batch, mode, training):
    line = landscape.loss_line(model, batch, num_points=5, seed=3, batch_norm=mode)
    direction = landscape.filter_direction(model, seed=3)
    expected = naive_losses(model, batch, direction, line.positions, training=training)
    assert line.positions.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert line.losses.tolist() == pytest.approx(expected, rel=1e-5)


def test_recalibrated_losses_are_those_of_statistics_taken_anew(model, batch):
    direction = landscape.filter_direction(model, seed=0)
    line = landscape.loss_line(model, batch, num_points=3, batch_norm="recalibrate")
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter += direction[name]
        for norm in twin.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.momentum = 1.0
        twin.train()(batch[0])
        expected = F.cross_entropy(twin.eval()(batch[0]), batch[1]).item()
    assert line.losses[-1].item() == pytest.approx(expected, rel=1e-5)


def test_recalibration_is_nearly_what_training_computes_and_stale_statistics_are_not(model, batch):
    at_end = {m: landscape.loss_line(model, batch, num_points=3, batch_norm=m).losses[-1].item() for m in
              landscape.BATCH_NORM_MODES}  # fmt: skip
    # the running variance is the unbiased one: a factor 12*4/(12*4 - 1) at the smallest map
    assert at_end["recalibrate"] == pytest.approx(at_end["train"], rel=0.05)
    assert abs(at_end["eval"] - at_end["train"]) > 0.05 * at_end["train"]


def test_scaling_weights_before_a_norm_leaves_the_landscape(batch):
    """Filter normalisation removes the scale invariance: the same network with other scales has the same line."""
    model = network(order="original").double()
    images = batch[0].double()
    before = landscape.loss_line(model, (images, batch[1]), num_points=5)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                module.weight *= 10  # so large that eps counts for even less
    after = landscape.loss_line(model, (images, batch[1]), num_points=5)
    torch.testing.assert_close(before.losses, after.losses, rtol=1e-2, atol=0)


def test_the_centre_is_the_models_own_loss_and_dropout_is_off(batch):
    model = network(stochastic_depth=0.9)
    line = landscape.loss_line(model, batch, num_points=3, batch_norm="eval")
    assert line.losses[1].item() == pytest.approx(F.cross_entropy(model.eval()(batch[0]), batch[1]).item(), rel=1e-6)


def test_a_plane_holds_the_lines_along_its_directions(model, batch):
    plane = landscape.loss_plane(model, batch, num_points=3, seed=2)
    assert plane.losses.shape == (3, 3)
    first = landscape.loss_line(model, batch, num_points=3, seed=4)
    second = landscape.loss_line(model, batch, num_points=3, seed=5)
    assert torch.equal(plane.losses[:, 1], first.losses)
    assert torch.equal(plane.losses[1], second.losses)


def test_losses_do_not_depend_on_batches_in_eval_mode(model, batch):
    whole, parts = (landscape.loss_line(model, batch, num_points=3, batch_norm="eval", batch_size=b) for b in (12, 5))
    torch.testing.assert_close(whole.losses, parts.losses, rtol=1e-5, atol=0)  # float32, summed in another order


def test_any_module_and_loss(batch):
    """A quadratic: the loss along a direction d is |w + a d|^2, known exactly."""
    model = nn.Linear(4, 1, bias=False).double()
    inputs = torch.eye(4, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    line = landscape.loss_line(model, inputs, num_points=7, loss=lambda y, _: y.square().mean())
    direction = landscape.filter_direction(model, seed=0)["weight"]
    # logits are at least single precision here double, so exact to rounding
    expected = [(model.weight + a * direction).square().mean().item() for a in line.positions.tolist()]
    assert line.losses.tolist() == pytest.approx(expected)
    assert landscape.roughness(line.losses).negative_curvature == 0


def test_unknown_mode_is_refused_before_anything_is_done(model, batch):
    before = fingerprint(model)
    with pytest.raises(UsageError, match="batch_norm 'batch': unknown"):
        landscape.loss_line(model, batch, batch_norm="batch")
    assert fingerprint(model) == before


GRID = torch.linspace(-1, 1, 21, dtype=torch.float64)


def test_roughness_of_a_bowl_a_saddle_and_a_cosine():
    x, y = torch.meshgrid(GRID, GRID, indexing="ij")
    bowl = landscape.roughness(x**2 + y**2)
    assert (bowl.num_minima, bowl.negative_curvature) == (1, 0)
    assert bowl.bending == pytest.approx(2 * 0.1**2 / 2)
    saddle = landscape.roughness(x * y)
    assert (saddle.num_minima, saddle.negative_curvature) == (0, 1)
    line = torch.linspace(0, 1, 101, dtype=torch.float64)
    waves = landscape.roughness(torch.cos(6 * torch.pi * line))  # minima at 1/6, 1/2, 5/6
    assert waves.num_minima == 3
    assert waves.negative_curvature == pytest.approx(0.5, abs=0.02)
    assert waves.bending > 5 * bowl.bending / 2 * 0.1


def test_roughness_does_not_depend_on_scale_and_shift():
    losses = torch.randn(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = landscape.roughness(losses), landscape.roughness(3 * losses + 7)
    assert (first.num_minima, first.negative_curvature) == (second.num_minima, second.negative_curvature)
    assert first.bending == pytest.approx(second.bending)
    assert landscape.roughness(torch.ones(5)) == landscape.Roughness(0, 0.0, 0.0)


def test_roughness_refuses_what_it_cannot_judge():
    with pytest.raises(UsageError, match="losses: 1 are not finite"):
        landscape.roughness(torch.tensor([1.0, float("inf"), 1.0]))
    with pytest.raises(UsageError, match="at least 3 a side"):
        landscape.roughness(torch.ones(5, 2))
