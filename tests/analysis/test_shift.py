"""Noise after norms: where it is, how it is distributed, and what it leaves alone."""

import pytest
import torch
from torch import nn

from tests.analysis.conftest import network
from tests.analysis.fingerprint import fingerprint
from verydeep import UsageError
from verydeep.analysis.shift import ShiftSpec, distribution_shift
from verydeep.nn.norm import RMSNorm2d

NORMS = {
    "batch": (nn.BatchNorm2d(6), (8, 6, 5, 5), 1),
    "batch 1d": (nn.BatchNorm1d(6), (8, 6, 4), 1),
    "group": (nn.GroupNorm(2, 6), (8, 6, 5, 5), 1),
    "instance": (nn.InstanceNorm2d(6), (8, 6, 5, 5), 1),
    "rms": (RMSNorm2d(6), (8, 6, 5, 5), 1),
    "layer": (nn.LayerNorm(6), (8, 5, 6), 2),
}


@pytest.mark.parametrize("name", NORMS)
def test_each_image_and_channel_is_shifted_and_scaled_as_one(name):
    norm, shape, axis = NORMS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    clean = norm.train()(x)
    with distribution_shift(norm, seed=1):
        noisy = norm(x)
    clean, noisy = (y.detach().movedim(axis, 1).flatten(2) for y in (clean, noisy))  # (N, C, positions)
    assert not torch.allclose(clean, noisy, atol=0.1)
    for n in range(8):
        for c in range(6):
            slope = (noisy[n, c, 1] - noisy[n, c, 0]) / (clean[n, c, 1] - clean[n, c, 0])
            expected = noisy[n, c, 0] + slope * (clean[n, c] - clean[n, c, 0])
            torch.testing.assert_close(noisy[n, c], expected, atol=1e-3, rtol=1e-3)


def moments(spec, *, passes=400):
    """Shift and scale of each pass, image and channel, read off outputs for inputs of -1 and 1."""
    norm = nn.BatchNorm1d(20, eps=1e-12, affine=False)
    x = torch.tensor([[-1.0], [1.0]]).repeat(50, 20)  # normalised already
    noisy = []
    with distribution_shift(norm, seed=0, spec=spec), torch.no_grad():
        for _ in range(passes):
            noisy.append(norm(x))
    return torch.stack(noisy)  # (T, 100, 20)


def test_shifts_have_the_stated_distribution():
    spec = ShiftSpec(mean_range=0.5, scale_range=1.0, mean_jitter=0.1, scale_jitter=0.0)
    sign = torch.tensor([-1.0, 1.0]).repeat(50)[:, None]
    shift = moments(spec) - sign
    of_channel = shift.mean(1)  # (T, C): the mean over 100 images is within 0.006 of mu
    assert of_channel.abs().max() < 0.53 and of_channel.abs().max() > 0.47
    assert of_channel.mean().abs() < 0.02
    assert of_channel.std().item() == pytest.approx(1 / 12**0.5, rel=0.05)
    jitter = shift - of_channel[:, None]
    assert jitter.abs().max() < 0.13
    assert jitter.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.05)


def test_scales_have_the_stated_distribution():
    spec = ShiftSpec(mean_range=0.0, scale_range=1.25, mean_jitter=0.0, scale_jitter=0.1)
    scale = moments(spec).abs()
    of_channel = scale.mean(1)
    assert of_channel.min() > 0.95 and of_channel.max() < 1.3
    assert of_channel.mean().item() == pytest.approx(1.125, abs=0.01)
    assert (scale - of_channel[:, None]).std().item() == pytest.approx(0.1, rel=0.05)


def test_noise_is_fresh_at_each_pass_and_the_same_for_the_same_seed(batch):
    def outputs(seed):
        model = network()
        with distribution_shift(model, seed=seed):
            return [model(batch[0]) for _ in range(2)]

    first, second = outputs(0)
    again = outputs(0)
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.allclose(first, second, atol=1e-2)
    assert not torch.allclose(first, outputs(1)[0], atol=1e-2)


def test_eval_mode_and_the_global_generator_are_left_alone(model, batch):
    before = fingerprint(model)
    with distribution_shift(model):
        model.train()(batch[0])
        state = torch.get_rng_state()
        shifted = model.eval()(batch[0])
    torch.testing.assert_close(shifted, model(batch[0]))  # not to the bit: fused operations step aside for hooks
    assert torch.equal(torch.get_rng_state(), state)
    assert fingerprint(model)["torch"] == before["torch"]


def test_hooks_are_gone_also_after_an_error(model):
    before = fingerprint(model)
    with pytest.raises(RuntimeError, match="inside"), distribution_shift(model):
        raise RuntimeError("inside")
    assert fingerprint(model) == before


def test_a_network_learns_under_the_shift(batch):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    with distribution_shift(model):
        for _ in range(60):
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_networks_without_norms_are_refused():
    with pytest.raises(UsageError, match="has no norm"), distribution_shift(network(norm="none")):
        pass
