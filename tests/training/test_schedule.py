"""Schedules: the paper's values, torch's one-cycle, and any number of steps from 1."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verydeep.config import PROTOCOLS, RunConfig
from verydeep.training.schedule import CURVES, lr_at, one_cycle, polynomial

SCHEDULES = ("steps", "one_cycle", "cosine", "linear", "polynomial", "constant")


def test_the_papers_cifar_protocol():
    config = RunConfig(protocol="he2016_cifar").resolved()
    assert config.steps == 64_000 and config.batch_size == 128 and config.bn_group_size == 64
    assert (config.momentum, config.nesterov, config.weight_decay, config.weight_decay_on) == (0.9, False, 1e-4, "all")
    expected = {0: 0.01, 399: 0.01, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001, 63_999: 0.001}
    for step, lr in expected.items():
        assert lr_at(step, 64_000, config) == pytest.approx(lr, rel=1e-12), step


def test_the_papers_imagenet_protocol():
    config = RunConfig(protocol="he2016_imagenet").resolved()
    assert (config.epochs, config.batch_size, config.bn_group_size) == (90, 256, 32)
    steps_per_epoch = math.ceil(1_281_167 / 256)
    total = 90 * steps_per_epoch
    for epoch, lr in {0: 0.1, 29: 0.1, 30: 0.01, 59: 0.01, 60: 0.001, 89: 0.001}.items():
        assert lr_at(epoch * steps_per_epoch, total, config) == pytest.approx(lr, rel=1e-12), epoch


def test_shorter_runs_keep_the_shape():
    config = RunConfig(protocol="he2016_cifar", steps=640).resolved()
    assert config.epochs is None
    assert [round(lr_at(step, 640, config), 6) for step in (3, 4, 319, 320, 479, 480)] == [
        0.01, 0.1, 0.1, 0.01, 0.01, 0.001,
    ]  # fmt: skip


@pytest.mark.parametrize("total", [10, 100, 345])
def test_one_cycle_is_torchs(total: int):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=total, cycle_momentum=False)
    curve = one_cycle(0.1, warmup=0.3)
    for step in range(total):
        assert curve(step, total) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9), step
        optimizer.step()
        scheduler.step() if step + 1 < total else None


@pytest.mark.parametrize("power", [0.9, 1.0, 2.0])
@pytest.mark.parametrize("total", [1, 10, 345])
def test_polynomial_is_torchs(total: int, power: float):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=power)
    curve = polynomial(0.1, warmup=0.0, power=power)
    for step in range(total):
        assert curve(step, total) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9), step
        optimizer.step()
        scheduler.step()


def test_polynomial_warms_up_as_the_other_decays_and_power_1_is_the_linear_one():
    def rates(**changes) -> list[float]:
        config = RunConfig(steps=10, lr=0.1, **changes).resolved()
        return [lr_at(step, 10, config) for step in range(10)]

    linear = rates(schedule="polynomial", schedule_power=1.0, warmup=0.3)
    assert linear == rates(schedule="linear", warmup=0.3) and linear[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    squared = rates(schedule="polynomial", warmup=0.0)  # power 2
    assert [squared[step] for step in (0, 5, 9)] == pytest.approx([0.1, 0.025, 0.001])


@given(
    total=st.integers(1, 300),
    schedule=st.sampled_from(SCHEDULES),
    warmup=st.sampled_from([0.0, 0.00625, 0.3, 0.99]),
    warmup_lr=st.sampled_from([None, 0.01]),
)
def test_every_schedule_works_for_any_number_of_steps(total, schedule, warmup, warmup_lr):
    config = RunConfig(schedule=schedule, steps=total, warmup=warmup, warmup_lr=warmup_lr, lr=0.1).resolved()
    rates = [lr_at(step, total, config) for step in range(total)]
    assert all(0 < rate <= 0.1 + 1e-12 for rate in rates)
    assert max(rates) >= 0.01  # some step learns at a real rate, also in a run of one


def test_no_milestones_is_a_constant_rate():
    config = RunConfig(schedule="steps", milestones=(), warmup=0.0, steps=8, lr=0.1).resolved()
    assert [lr_at(step, 8, config) for step in range(8)] == [0.1] * 8


def test_the_list_of_schedules_is_complete():
    assert set(RunConfig.__dataclass_fields__["schedule"].metadata["choices"]) == set(CURVES) == set(SCHEDULES)
    assert {protocol["schedule"] for protocol in PROTOCOLS.values()} <= set(SCHEDULES)
