"""Quantities against naive code, in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from verydeep.analysis import quantity
from verydeep.analysis.watch import watch

SIGNAL = st.integers(0, 10_000).map(lambda seed: torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(seed)))


def close(a, b):
    return math.isclose(float(a), float(b), rel_tol=1e-4, abs_tol=1e-6)


@given(SIGNAL)
def test_against_naive_code(x):
    values = x.double().flatten().tolist()
    assert close(quantity.mean_square(x), sum(v * v for v in values) / len(values))
    channels = [x[:, c].double().flatten().tolist() for c in range(3)]
    means = [sum(c) / len(c) for c in channels]
    variances = [sum((v - m) ** 2 for v in c) / len(c) for c, m in zip(channels, means, strict=True)]
    assert close(quantity.channel_variance(x, axis=1), sum(variances) / 3)
    cut = sum(v * v for v in values if v < 0) / sum(v * v for v in values)
    assert close(quantity.truncated_share(x), cut)
    y = x.relu()
    assert close(quantity.dead_share(y), sum(v <= 0 for v in values) / len(values))
    high = (y - 2).relu()
    assert close(quantity.dead_channel_share(high, axis=1), sum(max(c) <= 2 for c in channels) / 3)
    near = sum(abs(v) > 0.9 for v in torch.tanh(x).flatten().tolist()) / len(values)
    assert close(quantity.saturated_share(torch.tanh(x), low=-1, high=1, margin=0.05), near)


@given(SIGNAL)
def test_samples_against_naive_code(x):
    flat = x.double().flatten(1)
    centred = flat - flat.mean(0)
    assert close(quantity.sample_variation(x), centred.square().sum() / flat.square().sum())
    spectrum = torch.linalg.eigvalsh(centred @ centred.T)
    assert close(quantity.effective_rank(x), spectrum.sum() ** 2 / spectrum.square().sum())
    assert close(quantity.cosine(x, 2 * x), 1)


def test_logits_that_are_certain():
    assert quantity.certain_share(torch.tensor([[5.0, 0.0], [1.0, 0.0]])).item() == 0.5


def test_mean_square_is_finite_where_float32_squares_are_not():
    assert math.isfinite(quantity.mean_square(torch.full((4,), 1e18)).item())


NUMBERS = torch.tensor([3.0, -4.0, 0.0])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (NUMBERS, 5.0),
        (1e-30 * NUMBERS, 5e-30),
        (1e30 * NUMBERS, 5e30),
        (torch.full((1000,), 1e-25), 1e-25 * 1000**0.5),
        (NUMBERS.half(), 5.0),
        (NUMBERS.double() * 1e-100, 5e-100),
        (NUMBERS.to_sparse(), 5.0),
        (torch.complex(NUMBERS, torch.zeros(3)), 5.0),
        (torch.empty(0), 0.0),
        (torch.zeros(3), 0.0),
        (torch.tensor([1.0, torch.inf]), torch.inf),
    ],
)
def test_a_norm_neither_underflows_nor_overflows(x, expected):
    found = quantity.norm(x)
    assert found.dtype is torch.float64
    assert found.item() == pytest.approx(expected, rel=1e-6, abs=0)


def test_channels_of_nan_are_not_dead():
    x = torch.tensor([[torch.nan, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    assert quantity.dead_channel_share(x, axis=1).item() == 0.5


def test_watch_reads_gradients_that_float32_cannot_square():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(20)])
    for layer in model:
        nn.init.normal_(layer[0].weight, std=0.02)
    reports = []
    with watch(model, to=lambda step, report: reports.append(report)) as watched:
        model(torch.randn(4, 8)).sum().backward()
        watched.step()
    gradient = model[0][0].weight.grad.double()
    assert 0 < gradient.norm() < 1e-20
    weight = model[0][0].weight.detach().double()
    assert reports[0]["update/0.0.weight"] == pytest.approx(float(gradient.norm() / weight.norm()), rel=1e-5)
    assert 0 < reports[0]["gradient/0.0"] < 1e-18


def test_watch_reports_to_a_callback_and_leaves_no_hook():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    seen = []
    with watch(model, every=3, to=lambda step, report: seen.append((step, report))) as watched:
        for _ in range(7):
            model.zero_grad()
            loss = model(torch.ones(5, 3)).square().mean()
            loss.backward()
            watched.step(loss)
    assert [step for step, _ in seen] == [0, 3, 6]
    report = seen[0][1]
    assert {"loss", "signal/0", "gradient/0", "signal/1", "weight/2.weight", "update/2.weight"} <= set(report)
    assert close(report["signal/2"], model(torch.ones(5, 3)).square().mean().detach())
    assert all(not module._forward_hooks for module in model.modules())


def test_watch_writes_to_tensorboard(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    model = torch.nn.Linear(3, 1)
    with SummaryWriter(str(tmp_path)) as writer, watch(model, every=1, to=writer) as watched:
        model(torch.ones(2, 3)).sum().backward()
        watched.step()
    assert list(tmp_path.glob("events.*"))
