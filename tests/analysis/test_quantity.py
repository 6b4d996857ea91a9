"""Quantities against naive code, in float64."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

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
