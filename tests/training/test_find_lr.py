"""The learning-rate range test: its curve, what it suggests, what it leaves behind."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from verydeep import find_lr
from verydeep.cli import main
from verydeep.config import RunConfig
from verydeep.data import load_data
from verydeep.data.seed import WEIGHTS, mix
from verydeep.errors import UsageError
from verydeep.models.catalogue import create_model
from verydeep.training.find_lr import smooth, suggest
from verydeep.training.loop import train
from verydeep.training.plan import make_plan
from verydeep.training.reporter import SilentReporter

SMALL = RunConfig(model="preact_resnet8_cifar", batch_size=64)
QUIET = SilentReporter()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, for what should not be left in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_curve_is_that_of_plain_training():
    """Linear softmax regression by hand, at each rate in turn, from the same weights, on the same batches."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    weight, bias = (p.detach().clone() for p in model.parameters())
    digits = load_data("digits", crop_padding=0, flip=False)
    config = RunConfig(batch_size=100, momentum=0.0, nesterov=False, weight_decay=0.0)
    curve = find_lr(config, model, steps=40, data=digits, reporter=QUIET)
    assert curve.lrs == pytest.approx(np.geomspace(1e-7, 10, 40)[: len(curve.lrs)])
    plan = make_plan(RunConfig(batch_size=100, steps=40).resolved(), len(digits.train))
    step = 0
    for epoch in range(3):
        for (indices,) in plan.steps_of_epoch(from_step=plan.steps_per_epoch * epoch):
            (images, labels), *_ = digits.train.batches([indices], epoch=None, device=torch.device("cpu"))
            w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
            loss = F.cross_entropy(images.flatten(1) @ w.T + b, labels)
            assert curve.losses[step] == pytest.approx(loss.item(), rel=1e-4), step
            loss.backward()
            weight, bias = weight - curve.lrs[step] * w.grad, bias - curve.lrs[step] * b.grad
            step += 1
            if step == len(curve.lrs):
                return


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adamw"}, {"optimizer": "lars", "batch_size": 360}])
def test_what_it_suggests_trains(small, changes: dict):
    config = dict(model="preact_resnet8_cifar", batch_size=64) | changes
    curve = find_lr(RunConfig(**config), reporter=QUIET)
    assert min(curve.losses) < 2 < curve.losses[0]
    assert curve.lrs[0] < curve.suggested_lr < curve.minimum_lr < curve.lrs[-1]
    assert curve.tenth_lr == pytest.approx(curve.minimum_lr / 10, rel=0.06)
    result = train(small(steps=60, lr=curve.suggested_lr, **config | dict(log_steps=60)))
    assert result.values["train_loss"] < 1.0


def test_it_is_a_function_of_the_seed():
    first, again = (find_lr(SMALL, steps=30, reporter=QUIET) for _ in range(2))
    other = find_lr(RunConfig(model=SMALL.model, batch_size=64, seed=1), steps=30, reporter=QUIET)
    assert (first.lrs, first.losses) == (again.lrs, again.losses) and first.losses != other.losses


def test_the_weights_are_those_with_which_a_run_starts():
    torch.manual_seed(mix(WEIGHTS, 5))
    model = create_model(SMALL.model, in_channels=1)
    config = RunConfig(model=SMALL.model, batch_size=64, seed=5)
    given, made = (find_lr(config, m, steps=20, reporter=QUIET) for m in (model, None))
    assert given.losses == made.losses


def test_it_stops_where_the_loss_diverges():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    curve = find_lr(SMALL, model, steps=60, highest=1e6, reporter=QUIET)
    assert curve.diverged and len(curve.lrs) < 60 and max(curve.losses) > 4 * min(curve.losses)
    assert all(map(math.isfinite, curve.losses + curve.smoothed))


def test_a_loss_that_is_not_finite_ends_it():
    class Overflows(nn.Module):
        """Its logits are inf once its weights have moved far."""

        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, images):
            return self.linear(images.flatten(1)) / (self.linear.weight.abs().max() < 0.5)

    curve = find_lr(SMALL, Overflows(), steps=50, reporter=QUIET)
    assert curve.diverged and 10 < len(curve.lrs) < 50 and all(map(math.isfinite, curve.losses))


class Deaf(nn.Module):
    """Its loss does not depend on its weights."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)

    def forward(self, images):
        return self.linear(images.flatten(1)) * 0


def test_where_no_rate_lowers_the_loss_none_is_suggested():
    curve = find_lr(SMALL, Deaf(), steps=30, reporter=QUIET)
    assert curve.suggested_lr is curve.tenth_lr is None and "no rate lowered the loss up to 10" in curve.summary()
    assert suggest([], [], [], skip=3) == (None, None)


def test_smoothing_against_the_formula():
    losses = np.random.default_rng(0).uniform(1, 5, 30)
    expected = [
        sum(math.exp(-abs(t - i) / 3) * min(losses[i], 4) for i in range(30))
        / sum(math.exp(-abs(t - i) / 3) for i in range(30))
        for t in range(30)
    ]
    assert smooth(losses.tolist(), width=3, most=4) == pytest.approx(expected)


def test_the_rules_on_a_curve_that_is_known():
    """A fall around lr 1e-3 that is over at 1e-2, then a rise."""
    lrs = np.geomspace(1e-7, 10, 401)
    losses = 2 - 1 / (1 + np.exp(-6 * (np.log10(lrs) + 3))) + np.maximum(np.log10(lrs) + 2, 0) ** 2
    steepest, minimum = suggest(lrs, losses, losses, skip=40)
    assert steepest == pytest.approx(1e-3, rel=0.1) and 5e-3 < minimum < 2e-2


@pytest.mark.parametrize("steps", [1, 19])
def test_too_few_steps_are_refused(steps: int):
    with pytest.raises(UsageError, match=f"find_lr_steps {steps}: must be at least 20"):
        find_lr(SMALL, steps=steps)
    with pytest.raises(UsageError, match=r"lowest 1 and highest 0\.1: must be rates above 0, the lowest first"):
        find_lr(SMALL, lowest=1.0, highest=0.1)


FLAGS = ["train", "--find-lr", "--find-lr-steps", "30", "--model", "preact_resnet8_cifar"]


def test_from_the_command_line(here: Path, capsys: pytest.CaptureFixture):
    flags = ["--json", "curve.json", "--find-lr-page", "curve.html", "--milestones", "0.5,0.7", "--nesterov", "false"]
    assert main([*FLAGS, *flags, "--lr", "0.3", "--steps", "5000", "--out", "runs/x"]) == 0
    made = json.loads((here / "curve.json").read_text())
    assert len(made["lrs"]) == len(made["losses"]) == len(made["smoothed"]) == 30
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("train with  verydeep train --model preact_resnet8_cifar ")
    for words in (f"--lr {made['suggested_lr']}", "--milestones 0.5,0.7", "--nesterov false ", "--steps 5000 "):
        assert words in last
    assert "--find-lr" not in last and "--json" not in last and "0.3" not in last
    assert {path.name for path in here.iterdir()} == {"curve.json", "curve.html", "curve_files"}
    assert "Learning-rate range test" in (here / "curve.html").read_text()


def test_it_leaves_nothing(here: Path):
    assert main(FLAGS) == 0
    assert list(here.iterdir()) == []


def test_a_file_of_fields_stays_in_the_command(here: Path, capsys: pytest.CaptureFixture):
    (here / "fields.yaml").write_text("batch_size: 100\nlr: 0.7\n")
    assert main([*FLAGS, "--config", "fields.yaml"]) == 0
    assert "verydeep train --config fields.yaml --model preact_resnet8_cifar --lr " in capsys.readouterr().out


REFUSED = {
    "--find-lr --resume runs/x": "argument --find-lr: not with --resume; a resumed run keeps its lr",
    "--find-lr-steps 30": "argument --find-lr-steps 30: needs --find-lr",
    "--find-lr-page a.html": "argument --find-lr-page a.html: needs --find-lr",
    "--find-lr --find-lr-steps 3": "argument --find-lr-steps 3: must be at least 20",
    "--find-lr --find-lr-page a": "argument --find-lr-page 'a': must end in .html or .htm",
}


@pytest.mark.parametrize("line", REFUSED)
def test_refusals(line: str, capsys: pytest.CaptureFixture):
    assert main(["train", *line.split()]) == 2
    assert capsys.readouterr().err == f"verydeep: error: {REFUSED[line]}\n"


def test_no_rate_is_a_failure_that_is_stated_and_the_curve_is_written(here: Path, capsys: pytest.CaptureFixture):
    body = "return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), Zero())"
    zero = "class Zero(torch.nn.Module):\n    def forward(self, x):\n        return x * 0\n"
    (here / "deaf.py").write_text(f"import torch\n{zero}def build():\n    {body}\n")
    assert main(["train", "--find-lr", "--model", "deaf.py:build", "--json", "curve.json"]) == 1
    assert "no rate lowered the loss up to 10; verydeep diagnose says why" in capsys.readouterr().err
    assert json.loads((here / "curve.json").read_text())["suggested_lr"] is None


def test_ctrl_c_leaves_nothing(here: Path):
    command = [sys.executable, "-m", "verydeep", *FLAGS, "--find-lr-steps", "100000"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    listening = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # noqa: E731
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=here, preexec_fn=listening, **pipes) as process:
        assert process.stdout.readline().startswith("step 10/")
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "verydeep: error: interrupted\n")
    assert list(here.iterdir()) == []
