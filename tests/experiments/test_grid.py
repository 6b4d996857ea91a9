"""The grid: finished trials are kept and never run twice, failures are named, processes give the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.experiments.order import EXPERIMENT, LARGE, OrderedJob
from verydeep.data.image_list import default_workers, num_cores
from verydeep.errors import Diverged, RunError, UsageError
from verydeep.experiments.engine import engine_by_name
from verydeep.experiments.experiment import Experiment, Setting, Trial, Verdict
from verydeep.experiments.grid import jobs_of, results_of, run_jobs
from verydeep.experiments.job import PROCESS_BYTES, Engine, Job
from verydeep.experiments.local_engine import _Memory, in_turn, side_by_side, visible_gpus
from verydeep.experiments.reproduce import reproduce
from verydeep.experiments.sources import SOURCES, Loaded, Source, Work
from verydeep.memory.plan import DoesNotFit


class Counted(Source):
    """A source of two experiments that counts what is measured."""

    measured: list[str] = []  # noqa: RUF012 (one list for the test)

    def load(self) -> Loaded:
        def trial(name: str) -> Trial:
            def measure(seed: int):
                self.measured.append(f"{name}{seed}")
                return {"value": 10 * seed + len(name)}

            return Trial(name, measure)

        def judge(results, setting):
            return {"x": Verdict("holds", [m["value"] for m in results["aa"]], "value")}

        trained = Experiment("t", "trained", "T", lambda setting: [trial("aa"), trial("b/ b")], judge, claims=("x",))
        exact = Experiment("e", "exact", "E", lambda setting: [trial("ccc")], lambda results, setting: {}, claims=())
        return Loaded([trained, exact], [])


@pytest.fixture
def source(monkeypatch) -> Counted:
    counted = Counted("counted", "module", Work("counted", "Title", "citation", ""))
    Counted.measured = []
    monkeypatch.setitem(SOURCES, "counted", counted)
    return counted


def test_seeds_are_for_what_is_trained(source: Counted):
    jobs = jobs_of("counted", source.load().experiments, setting=Setting(), seeds=3)
    assert [(job.trial.name, job.seed) for job in jobs] == [
        ("aa", 0), ("b/ b", 0), ("ccc", 0), ("aa", 1), ("b/ b", 1), ("aa", 2), ("b/ b", 2),
    ]  # fmt: skip


def test_a_finished_trial_is_never_run_twice(source: Counted, tmp_path: Path):
    reproduce("counted", seeds=2, out=tmp_path)
    assert sorted(Counted.measured) == ["aa0", "aa1", "b/ b0", "b/ b1", "ccc0"]
    before = json.loads((tmp_path / "counted.json").read_text())
    reproduce("counted", seeds=2, out=tmp_path)
    assert len(Counted.measured) == 5
    assert json.loads((tmp_path / "counted.json").read_text())["seconds"] == before["seconds"]
    reproduce("counted", seeds=3, out=tmp_path)
    assert sorted(Counted.measured[5:]) == ["aa2", "b/ b2"]


def test_results_are_by_trial_over_seeds(source: Counted, tmp_path: Path):
    experiments = source.load().experiments
    jobs = jobs_of("counted", experiments, setting=Setting(), seeds=2)
    seen = []
    run_jobs(jobs, out=tmp_path, engine=in_turn, report=lambda *values: seen.append(values))
    results = results_of(experiments[0], jobs, out=tmp_path)
    assert results == {"aa": [{"value": 2}, {"value": 12}], "b/ b": [{"value": 4}, {"value": 14}]}
    assert [done for done, *_ in seen] == [0, 1, 2, 3, 4, 5] and seen[-1][3] == 0


FAILURES = [
    (ZeroDivisionError("by zero"), RunError, "trial z: bad: ZeroDivisionError: by zero; the trials done are kept"),
    (UsageError("lr 0: must be above 0"), UsageError, "trial z: bad: lr 0: must be above 0"),
    (DoesNotFit("too large", smallest_budget=1, largest_batch=0), UsageError, "trial z: bad: too large"),
    (Diverged("step 3: not finite"), RunError, "trial z: bad: step 3: not finite"),
    (KeyboardInterrupt(), KeyboardInterrupt, ""),
]


@pytest.mark.parametrize(("failure", "kind", "words"), FAILURES)
def test_a_trial_that_fails_is_named_and_the_others_are_kept(
    failure: BaseException, kind: type, words: str, source: Counted, tmp_path: Path, monkeypatch
):
    def fail(seed: int):
        raise failure

    loaded = source.load()
    bad = Experiment("z", "exact", "Z", lambda setting: [Trial("bad", fail)], lambda r, setting: {}, claims=())
    monkeypatch.setattr(Counted, "load", lambda self: Loaded([*loaded.experiments, bad], []))
    with pytest.raises(BaseException) as caught:
        reproduce("counted", out=tmp_path)
    assert type(caught.value) is kind and str(caught.value) == words
    assert len(list((tmp_path / "trials").rglob("*.json"))) == 3


@dataclass(frozen=True)
class Refused:
    """An order that no worker can carry out."""

    def carry_out(self, directory: Path) -> dict[str, Any]:
        raise UsageError("lr 0: must be above 0")


@dataclass(frozen=True)
class Placed:
    """An order that says which process carries it out and the GPU that it sees, once `count` are at work at a time."""

    name: str
    begun: Path
    count: int

    def carry_out(self, directory: Path) -> dict[str, Any]:
        (self.begun / self.name).touch()
        deadline = time.monotonic() + 120
        while len(list(self.begun.iterdir())) < self.count:
            assert time.monotonic() < deadline, "they do not run side by side"
            time.sleep(0.05)
        gpu, decoders = os.environ.get("CUDA_VISIBLE_DEVICES"), default_workers() / num_cores()
        return {"seconds": 0.0, "values": {"process": os.getpid(), "gpu": gpu, "decoders": decoders}}


def measured_by(engine: Engine, jobs: list[Job], out: Path) -> list[dict[str, Any]]:
    run_jobs(jobs, out=out, engine=engine, report=lambda *_: None)
    return [job.read(out)["values"] for job in jobs]


def test_what_a_worker_refuses_is_named(tmp_path: Path):
    job = OrderedJob("x", EXPERIMENT, Trial("bad", lambda seed: {}), 2, Setting(), own=Refused())
    with pytest.raises(UsageError, match=r"^trial e: bad, seed 2: lr 0: must be above 0$"):
        measured_by(side_by_side(1), [job], tmp_path)


def test_each_process_has_a_gpu_of_its_own(tmp_path: Path, monkeypatch):
    """Three processes on two GPUs; of the trainings' steps the machine's own memory would hold one at a time."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("verydeep.experiments.local_engine.free_bytes", lambda device: 3 * PROCESS_BYTES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    (begun := tmp_path / "begun").mkdir()
    jobs: list[Job] = [
        OrderedJob("x", EXPERIMENT, LARGE, seed, Setting(), own=Placed(str(seed), begun, 3)) for seed in range(4)
    ]
    assert jobs[0].needed_bytes(gpus=False) > 3 * PROCESS_BYTES
    measured = measured_by(engine_by_name("local", 3), jobs, tmp_path)
    by_process = {values["process"]: values["gpu"] for values in measured}
    assert sorted(by_process.values()) == ["4", "4", "GPU-7"] and os.getpid() not in by_process
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,GPU-7", "this process is left as it was"
    assert all(values["decoders"] <= max(1 / 3, 1 / num_cores()) for values in measured), "they share the cores"


@pytest.mark.parametrize(
    ("count", "visible", "names"),
    [(2, None, ["0", "1"]), (2, "2,5", ["2", "5"]), (1, "2,-1,5", ["2"]), (0, None, []), (0, "", [])],
)
def test_gpus_are_those_that_this_process_may_use(count: int, visible: str | None, names: list[str], monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == names


def test_processes_are_one_a_gpu_or_one_a_core(monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr("verydeep.experiments.engine.num_cores", lambda: 64)
    monkeypatch.setattr("verydeep.experiments.engine.side_by_side", asked.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    engine_by_name("local")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    engine_by_name("local")
    engine_by_name("local", 16)
    assert asked == [64, 8, 16]


def test_trainings_wait_for_the_memory_that_they_need():
    jobs = [Job("x", EXPERIMENT, LARGE, seed, Setting()) for seed in range(3)]
    needed = jobs[0].needed_bytes(gpus=False)
    memory = _Memory(int(2.5 * needed), gpus=False)
    assert [memory.takes(job) for job in jobs] == [True, True, False]
    memory.leave(jobs[0])
    assert memory.takes(jobs[2])
    assert _Memory(needed // 2, gpus=False).takes(jobs[0]), "alone it is let in whatever it needs"


def test_a_damaged_trial_is_named(source: Counted, tmp_path: Path):
    reproduce("counted", out=tmp_path)
    job = jobs_of("counted", source.load().experiments, setting=Setting(), seeds=1)[0]
    job.path(tmp_path).write_text("{")
    with pytest.raises(UsageError, match=r"aa-s0\.json: cannot be read .*; delete it to run it again"):
        job.read(tmp_path)


def test_processes_give_the_numbers_of_one(tmp_path: Path):
    one = reproduce("chapter", only=["exact"], out=tmp_path / "one")
    two = reproduce("chapter", only=["exact"], out=tmp_path / "two", engine=side_by_side(2))
    assert [c["measured"] for c in one.values["cells"]] == [c["measured"] for c in two.values["cells"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(name="chaptr"), "reproduce 'chaptr': unknown; nearest: chapter"),
        (dict(name="chapter", only=["figur11"]), "only 'figur11': no such kind, experiment or claim; nearest: fig11"),
        (dict(name="chapter", scale="huge"), "scale 'huge': unknown"),
        (dict(name="chapter", seeds=0), "seeds 0: must be at least 1"),
    ],
)
def test_what_cannot_be_reproduced_is_one_line(arguments: dict, message: str, tmp_path: Path):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        reproduce(**arguments, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def everybody(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does


def driver(number: signal.Signals) -> Callable[[subprocess.Popen], None]:
    return lambda process: process.send_signal(number)


STOPS = {
    "Ctrl-C": (everybody, 130),
    "SIGINT of the driver": (driver(signal.SIGINT), 130),
    "SIGTERM of the driver": (driver(signal.SIGTERM), -signal.SIGTERM),
    "kill -9 of the driver": (driver(signal.SIGKILL), -signal.SIGKILL),
}


@pytest.mark.parametrize(("stop", "code"), STOPS.values(), ids=STOPS)
def test_stopped_side_by_side_all_processes_end_and_keep_their_checkpoints(stop, code: int, tmp_path: Path):
    command = [sys.executable, "-m", "verydeep", "reproduce", "degradation", "--processes", "2", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    runs = tmp_path / "runs" / "small"
    deadline = time.monotonic() + 120
    try:
        while sum('"step": 20' in path.read_text() for path in runs.glob("*/metrics.jsonl")) < 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        stop(process)
        _, err = process.communicate(timeout=120)  # until the last process that can write has ended
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code and "Traceback" not in err
    assert "interrupted" in err or code < 0
    stopped = [path.parent for path in runs.glob("*/metrics.jsonl")]
    assert len(stopped) == 2 and all((run / "checkpoints" / "last.pt").exists() for run in stopped)
    assert not any((run / "result.json").exists() for run in stopped), "none was left alone to go on to its end"
    assert list(runs.glob("*.json")) == [], "half a training is no measurement"


def test_the_papers_scale_is_trained_with_five_seeds(source: Counted, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("verydeep.experiments.reproduce.small_data", lambda *data: None)
    values = [reproduce("counted", scale=scale, out=tmp_path).values for scale in ("small", "paper")]
    assert [(one["seeds"], one["data"]) for one in values] == [(1, "digits"), (5, "cifar10")]
    assert Counted.measured.count("aa4") == 1 and Counted.measured.count("ccc1") == 0


def test_settings_are_named_apart():
    named = {str(Setting(*arguments)) for arguments in (("small",), ("paper",), ("small", "cifar10"))}
    assert named == {"small", "paper", "small-cifar10"}
    assert str(Setting("paper", "cifar10")) == "paper", "what is usual there"
    assert str(Setting("paper", "digits")) == "paper-digits"
