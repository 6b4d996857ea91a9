"""Runs as processes: kill -9, SIGINT, SIGTERM, output to a pipe, and two processes that train as one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from verydeep.cli import main

SMALL = ["--model=preact_resnet8_cifar", "--batch-size=32", "--log-steps=2", "--stochastic-depth=0.2", "--ema=0.9"]
# one thread each: the processes of these tests share cores with each other
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}


def start(*arguments: str, module: tuple[str, ...] = ("verydeep",)) -> subprocess.Popen:
    command = [sys.executable, "-m", *module, "train", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # under nohup SIGHUP is ignored, and children inherit that
    listening = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)  # noqa: E731
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, preexec_fn=listening, **pipes)


def finish(process: subprocess.Popen) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def wait_for_lines(path: Path, count: int, process: subprocess.Popen) -> None:
    """Until the run has written so many lines of metrics."""
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def metrics(path: Path) -> list[dict]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "images_per_second"} for line in lines]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 300 steps that nothing disturbs; its output has no carriage return."""
    path = tmp_path_factory.mktemp("unbroken") / "run"
    out = finish(start(*SMALL, "--steps", "300", "--out", str(path)))
    assert "\r" not in out and "\x1b" not in out
    assert "step 300/300" in out and "test error" in out
    return path


def assert_same(path: Path, other: Path) -> None:
    assert metrics(path) == metrics(other)
    ours, theirs = (load_file(p / "model.safetensors") for p in (path, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    states = [torch.load(p / "checkpoints" / "last.pt", weights_only=True)["optimizer"]["state"] for p in (path, other)]
    assert all(torch.equal(states[0][i]["momentum_buffer"], states[1][i]["momentum_buffer"]) for i in states[1])


def test_kill_9_at_any_moment_then_resume(unbroken: Path, tmp_path: Path):
    path = tmp_path / "run"
    arguments = [*SMALL, "--steps", "300", "--out", str(path), "--checkpoint-seconds", "0.05"]
    for lines in (1, 60, 110):
        process = start(*arguments)
        wait_for_lines(path / "metrics.jsonl", lines, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL and not (path / "result.json").exists()
        arguments = ["--resume", str(path), "--checkpoint-seconds", "0.05"]
    finish(start(*arguments))
    assert_same(path, unbroken)
    assert not list(path.rglob("*.tmp*"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_exits_cleanly(unbroken: Path, tmp_path: Path, number: signal.Signals):
    path = tmp_path / "run"
    process = start(*SMALL, "--steps", "300", "--out", str(path))
    wait_for_lines(path / "metrics.jsonl", 20, process)
    process.send_signal(number)
    out = finish(process)
    assert f"stopped by {number.name}" in out and f"verydeep train --resume {path}" in out
    assert not (path / "result.json").exists()
    finish(start("--resume", str(path)))
    assert_same(path, unbroken)


def test_a_reader_that_leaves_does_not_stop_the_run(tmp_path: Path):
    """`verydeep train | head -1`: the metrics go on, the run ends well."""
    with start(*SMALL, "--steps", "40", "--out", str(tmp_path / "run")) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("step")
        process.stdout.close()
        process.wait(timeout=120)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 40


def distributed(processes: int, *arguments: str) -> subprocess.Popen:
    launcher = (
        "torch.distributed.run",
        f"--nproc-per-node={processes}",
        "--master-port=0",
        "--standalone",
        "-m",
        "verydeep",
    )
    return start(*arguments, module=launcher)


STOPPING = ["--optimizer", "lars", "--validation", "10", "--eval-steps", "2", "--early-stop", "1"]


@pytest.mark.parametrize(
    "statistics", [["--sync-bn", "true"], ["--bn-group-size", "16"], ["--sync-bn", "true", *STOPPING]]
)
def test_two_processes_train_as_one(tmp_path: Path, statistics: list[str]):
    """Float32 sums in another order: after 6 steps weights agree to 2e-4 (they are of order 1), losses to 1e-5."""
    options = [
        "--model",
        "preact_resnet8_cifar",
        "--batch-size",
        "64",
        "--steps",
        "6",
        "--log-steps",
        "1",
        "--lr",
        "0.02",
    ]
    finish(start(*options, *statistics, "--out", str(tmp_path / "one")))
    out = finish(distributed(2, *options, *statistics, "--out", str(tmp_path / "two")))
    assert out.count("test error  ") == 1  # one process speaks
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-5)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("one", "two")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=0, atol=2e-4, msg=name)
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two")]
    assert results[1]["processes"] == 2
    assert results[0]["stopped_early"] == results[1]["stopped_early"]
    assert (results[1]["stopped_early"] is not None) == ("--early-stop" in statistics)


def test_two_processes_within_a_memory_budget(tmp_path: Path):
    """Recomputation meets synchronised norms and gradients that cross processes: nothing changes."""
    options = ["--model", "preact_resnet14_cifar", "--batch-size", "64", "--steps", "4", "--sync-bn", "true"]
    finish(distributed(2, *options, "--out", str(tmp_path / "plain")))
    finish(distributed(2, *options, "--memory-budget", "3700kB", "--out", str(tmp_path / "planned")))
    plan = json.loads((tmp_path / "planned" / "result.json").read_text())["memory_plan"]
    assert plan["recomputed_units"] > 0
    assert_same(tmp_path / "planned", tmp_path / "plain")


def test_two_processes_stop_and_resume_as_one(tmp_path: Path):
    options = [*SMALL, "--steps", "120", "--sync-bn", "true"]
    finish(distributed(2, *options, "--out", str(tmp_path / "unbroken")))
    process = distributed(2, *options, "--out", str(tmp_path / "run"), "--checkpoint-seconds", "0.1")
    wait_for_lines(tmp_path / "run" / "metrics.jsonl", 20, process)
    process.send_signal(signal.SIGTERM)  # which the launcher passes on
    process.communicate(timeout=60)
    assert not (tmp_path / "run" / "result.json").exists()
    finish(distributed(2, "--resume", str(tmp_path / "run")))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "unbroken")


SPAWNING = """
import multiprocessing
import sys

from verydeep.cli import main

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    sys.exit(main(sys.argv[1:]))
"""


def test_the_command_line_works_where_processes_are_spawned(tmp_path: Path):
    """As on macOS: workers import the program anew, and decode the same images."""
    for label in "ab":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (72, 72), (40 * number, 9 * number, ord(label))).save(
                tmp_path / "photos" / label / f"{number}.png"
            )
    (tmp_path / "spawning.py").write_text(SPAWNING)
    flags = ["--model=preact_resnet8_cifar", "--width=4", f"--data=folder:{tmp_path / 'photos'}", "--image-size=72"]
    flags += ["--steps=2", "--batch-size=3", "--workers=1"]
    command = [sys.executable, str(tmp_path / "spawning.py"), "train", *flags, f"--out={tmp_path / 'spawned'}"]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, timeout=300)
    assert main(["train", *flags, f"--out={tmp_path / 'forked'}"]) == 0
    assert_same(tmp_path / "spawned", tmp_path / "forked")
