"""Runs within a memory budget: the same numbers, said and recorded; and refusals that name what would do."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from tests.training.test_run import killed_after
from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.memory.plan import DoesNotFit
from verydeep.memory.segment import SegmentedSequential
from verydeep.nn.unit import ResidualUnit
from verydeep.training.distributed import World
from verydeep.training.loop import resume, train
from verydeep.training.run import Run
from verydeep.training.rundir import RESULT, WEIGHTS

CPU = World(rank=0, size=1, device=torch.device("cpu"))


def tight(config: RunConfig, data=None) -> str:
    """A budget within which some units must be recomputed: half-way from the smallest to what needs no plan."""
    whole = Run(replace(config.resolved(), memory_budget="1TB"), Path(config.out), CPU, data=data).memory_plan
    with pytest.raises(UsageError) as refused:
        Run(replace(config.resolved(), memory_budget="1"), Path(config.out), CPU, data=data)
    assert isinstance(refused.value.__cause__, DoesNotFit)
    return str((refused.value.__cause__.smallest_budget + whole.peak_bytes) // 2)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bn_group_size": 8, "accumulate": 2},
        {"ema": 0.9, "stochastic_depth": 0.3},
        {"precision": "bf16", "shortcut": "dropout"},
        {"optimizer": "adamw", "lr": 0.001, "clip_grad_norm": 0.5},
        {"optimizer": "lars", "lr": 1.0},
    ],
)
def test_a_run_within_a_budget_has_the_same_weights(small, changes):
    plain = train(small("plain", model="preact_resnet14_cifar", steps=3, **changes))
    config = small("planned", model="preact_resnet14_cifar", steps=3, **changes)
    planned = train(replace(config, memory_budget=tight(config)))
    assert planned.values["memory_plan"]["recomputed_units"] > 0 and plain.values["memory_plan"] is None
    assert (planned.directory / WEIGHTS).read_bytes() == (plain.directory / WEIGHTS).read_bytes()
    assert planned.values["test_loss"] == plain.values["test_loss"]


def test_the_plan_is_said_and_recorded(small, capsys):
    config = small(model="preact_resnet14_cifar", steps=1)
    budget = tight(config)
    train(replace(config, memory_budget=budget))
    assert "memory plan for (32, 1, 8, 8) within" in capsys.readouterr().out
    values = json.loads((Path(config.out) / RESULT).read_text())
    plan = values["memory_plan"]
    assert plan["budget"] == int(budget) >= plan["peak_bytes"] and 0 < plan["extra_work"] < 1 / 3
    written = yaml.safe_load((Path(config.out) / "config.yaml").read_text())
    assert written["memory_budget"] == budget


def test_a_killed_run_goes_on_with_a_budget(small, monkeypatch):
    options = dict(model="preact_resnet14_cifar", steps=6, checkpoint_seconds=0.0)
    whole = train(small("whole", **options))
    config = small("parts", **options)
    killed_after(monkeypatch, 3, lambda: train(config))
    last = resume(config.out, {"memory_budget": tight(config)})
    assert last.values["memory_plan"]["recomputed_units"] > 0
    assert (last.directory / WEIGHTS).read_bytes() == (whole.directory / WEIGHTS).read_bytes()


def test_what_does_not_fit_names_budget_and_batch_that_do(small):
    config = small(model="preact_resnet14_cifar", steps=1, batch_size=128)
    whole = Run(replace(config.resolved(), memory_budget="1TB"), Path(config.out), CPU).memory_plan
    too_small = whole.state_bytes + int(0.3 * (whole.peak_bytes - whole.state_bytes))
    with pytest.raises(UsageError) as refused:
        train(replace(config, memory_budget=str(too_small)))
    text = str(refused.value)
    assert text.startswith(f"memory_budget {too_small}: a step on batch_size 128") and "--accumulate" in text
    budget = text.split("nearest ")[1].split(",")[0]
    batch = int(text.split("or batch_size ")[1].split(" ")[0])
    assert 1 < batch < 128
    assert train(replace(config, memory_budget=budget)).finished
    again = replace(config, out=config.out + "2", batch_size=batch, memory_budget=str(too_small))
    assert train(again).finished


def test_other_networks_are_told_what_to_do(small):
    with pytest.raises(UsageError, match=r"memory_budget 1GB: model .* has no ResidualUnit .* checkpoint_units"):
        train(small(memory_budget="1GB"), torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)))


def test_a_budget_beyond_what_is_free(small, monkeypatch):
    monkeypatch.setattr("verydeep.training.fit.free_bytes", lambda device: 1_000_000)
    with pytest.raises(UsageError, match=r"memory_budget 1TB: .* nearest 1MB, which are free on cpu"):
        train(small(memory_budget="1TB"))


@pytest.mark.parametrize("value", ["2XB", "", "-1"])
def test_what_is_no_size(value):
    with pytest.raises(UsageError, match=r"^memory_budget .*must be a number of bytes"):
        RunConfig(memory_budget=value)


def test_a_bad_step_is_located_in_a_planned_network(small, digits):
    """The run's own probe hooks every module; the plan stays in force."""
    config = small(model="preact_resnet14_cifar", steps=3, max_bad_steps=5, log_steps=1)
    config = replace(config.resolved(), memory_budget=tight(config))
    run = Run(config, Path(config.out), CPU, data=digits)
    assert any(isinstance(module, SegmentedSequential) for module in run.state.model.modules())
    unit = next(module for module in run.state.model.modules() if isinstance(module, ResidualUnit))
    with torch.no_grad():
        unit.branch.conv1.weight.fill_(float("nan"))
    assert run._locate(0) == "parameter stages.0.0.branch.conv1.weight"
    with torch.no_grad():
        unit.branch.conv1.weight.fill_(1e38)
    assert run._locate(0).startswith("output of stages.0.0.branch")
