"""The grid: finished trials are kept and never run twice, failures are named, processes give the same numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verydeep.errors import RunError, UsageError
from verydeep.experiments.experiment import Experiment, Setting, Trial, Verdict
from verydeep.experiments.grid import jobs_of, results_of, run_jobs
from verydeep.experiments.local_engine import in_turn, side_by_side
from verydeep.experiments.reproduce import reproduce
from verydeep.experiments.sources import SOURCES, Loaded, Source, Work


class Counted(Source):
    """A source of two experiments that counts what is measured."""

    measured: list[str] = []  # noqa: RUF012 (one list for the test)

    def load(self) -> Loaded:
        def trial(name: str) -> Trial:
            def measure(seed: int):
                self.measured.append(f"{name}{seed}")
                if name == "bad":
                    raise RunError("trial bad: broke")
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


def test_a_trial_that_fails_is_named_and_the_others_are_kept(source: Counted, tmp_path: Path, monkeypatch):
    loaded = source.load()
    bad = Experiment(
        "z", "exact", "Z", lambda setting: [Trial("bad", lambda seed: 1 / 0)], lambda r, setting: {}, claims=()
    )
    monkeypatch.setattr(Counted, "load", lambda self: Loaded([*loaded.experiments, bad], []))
    with pytest.raises(ZeroDivisionError):
        reproduce("counted", out=tmp_path)
    assert len(list((tmp_path / "trials").rglob("*.json"))) == 3


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


def test_interrupted_side_by_side_it_ends_and_keeps_its_checkpoints(tmp_path: Path):
    command = [sys.executable, "-m", "verydeep", "reproduce", "degradation", "--processes", "2", "--out", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True)
    runs = tmp_path / "runs" / "small"
    deadline = time.monotonic() + 120
    while sum('"step": 20' in path.read_text() for path in runs.glob("*/metrics.jsonl")) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in err and "Traceback" not in err
    stopped = [path.parent for path in runs.glob("*/metrics.jsonl")]
    assert len(stopped) == 2 and all((run / "checkpoints" / "last.pt").exists() for run in stopped)
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
