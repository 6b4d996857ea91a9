"""`bench`: the convolutions it counts are the network's, and its numbers belong together."""

import json
import math
from pathlib import Path

import pytest
import torch

from verydeep import create_model
from verydeep.bench import bench, conv_calls, timed
from verydeep.cli import main
from verydeep.config import RunConfig
from verydeep.training.reporter import PlainReporter


def test_every_convolution_is_counted_at_its_own_shape():
    model = create_model("preact_resnet20_cifar", option="B").train()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    calls = conv_calls(model, torch.randn(4, 3, 32, 32))
    assert sum(calls.values()) == sum(isinstance(module, torch.nn.Conv2d) for module in model.modules()) == 21
    assert sum(count for call, count in calls.items() if call.first) == 1
    same = [(call, count) for call, count in calls.items() if call.weight_shape == (16, 16, 3, 3)]
    assert [(call.input_shape, count) for call, count in same] == [((4, 16, 32, 32), 6)]
    projections = {call.weight_shape: call.stride for call in calls if call.weight_shape[2:] == (1, 1)}
    assert projections == {(32, 16, 1, 1): (2, 2), (64, 32, 1, 1): (2, 2)}
    assert model.training and all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize(("stride_on", "macs"), [("1x1", 3_857_973_248), ("3x3", 4_089_184_256)])
def test_multiplications_of_resnet50_tell_where_it_strides(stride_on, macs):
    """3.858 G and 4.089 G at 224, the head's counted; the weights have the same shapes."""
    model = create_model("resnet50", stride_on=stride_on)
    total = model.head.linear.weight.numel()
    for call, count in conv_calls(model, torch.zeros(1, 3, 224, 224)).items():
        sides = zip(call.input_shape[2:], call.weight_shape[2:], call.padding, call.stride, strict=True)
        positions = math.prod((side + 2 * padding - kernel) // stride + 1 for side, kernel, padding, stride in sides)
        total += count * positions * math.prod(call.weight_shape)
    assert total == macs


def test_the_warm_up_is_not_counted(monkeypatch):
    clock = iter([0.0, 100.0, 200.0, 201.0, 300.0, 302.0, 400.0, 403.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    calls = []
    assert timed(lambda: calls.append(1), rounds=3, device=torch.device("cpu")) == 2.0 and len(calls) == 4


def test_numbers_belong_together():
    config = RunConfig(model="preact_resnet8_cifar", batch_size=32, accumulate=2)
    measured = bench(config, rounds=2)
    assert (measured.batch_size, measured.image_shape) == (64, (1, 8, 8))
    assert measured.images_per_second == pytest.approx(64 / measured.step_seconds)
    assert measured.step_over_floor == pytest.approx(measured.step_seconds / measured.floor_seconds)
    assert measured.floor_seconds > 0 and measured.peak_memory_bytes > measured.activation_bytes > 0


def test_bench_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["--model", "resnet8_cifar", "--batch-size", "16", "--rounds", "1", "--json", "b.json"]
    assert main(["bench", *flags]) == 0
    assert "step_over_floor" in capsys.readouterr().out
    assert json.loads(Path("b.json").read_text())["model"] == "resnet8_cifar"
    assert [path.name for path in tmp_path.iterdir()] == ["b.json"]
    assert main(["bench", "--rounds", "0"]) == 2


def test_the_plan_of_a_budget_is_told(capsys: pytest.CaptureFixture):
    config = RunConfig(model="preact_resnet56_cifar", batch_size=32, memory_budget="13MB")
    measured = bench(config, rounds=1, reporter=PlainReporter())
    assert "memory plan for (32, 1, 8, 8) within 13MB" in capsys.readouterr().out
    assert measured.memory_plan["peak_bytes"] <= 13_000_000 < measured.memory_plan["unplanned_bytes"]
    assert measured.activation_bytes == measured.memory_plan["kept_bytes"]
