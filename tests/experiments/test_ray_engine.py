"""The Ray engine on a cluster of two nodes, one of which is killed in the middle: no trial is lost or counted twice."""

import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from verydeep.errors import RunError, UsageError
from verydeep.experiments.engine import engine_by_name
from verydeep.experiments.experiment import Experiment, Setting, Trial
from verydeep.experiments.grid import run_jobs
from verydeep.experiments.job import Job
from verydeep.experiments.ray_engine import carry_out, packed, unpack

EXPERIMENT = Experiment("e", "trained", "E", lambda setting: [], lambda results, setting: {})


@dataclass(frozen=True)
class Noted:
    """An order that says when it is begun, and leaves a run directory behind."""

    name: str
    log: Path
    seconds: float

    def carry_out(self, directory: Path) -> dict[str, Any]:
        with self.log.open("a") as log:
            log.write(f"{self.name} {_node()}\n")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "metrics.jsonl").write_text(self.name)
        (directory / "checkpoints").mkdir(exist_ok=True)
        (directory / "checkpoints" / "last.pt").write_text("heavy")
        time.sleep(self.seconds)
        if self.name == "bad":
            raise ValueError("broke")
        return {"seconds": self.seconds, "values": {"name": self.name}}


def _node() -> str:
    """The node that this is run on."""
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"


@dataclass(frozen=True)
class NotedJob(Job):
    """A job whose order is a `Noted`."""

    log: Path = field(default=Path())
    seconds: float = 0.0

    @property
    def order(self) -> Any:
        return Noted(self.trial.name, self.log, self.seconds)


def jobs(names: list[str], log: Path, seconds: float) -> list[Job]:
    return [
        NotedJob("x", EXPERIMENT, Trial(name, lambda seed: {}), 0, Setting(), log=log, seconds=seconds)
        for name in names
    ]


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'verydeep[ray]'")
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", ":".join(sys.path))  # of the nodes' workers, which import this file
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    memory = {"memory": 4_000_000_000, "object_store_memory": 100_000_000, "num_cpus": 1}
    started = Cluster(initialize_head=True, head_node_args=memory | {"_system_config": quick})
    yield started, started.add_node(**memory)
    ray.shutdown()
    started.shutdown()
    patch.undo()


def test_without_a_shared_disk_the_run_directory_is_sent(cluster, tmp_path: Path, monkeypatch):
    started, _ = cluster
    monkeypatch.setattr("verydeep.experiments.ray_engine._mark", lambda out: tmp_path / "elsewhere" / "token")
    out = tmp_path / "out"
    run_jobs(
        jobs(["a", "b"], tmp_path / "log", 0.0), out=out,
        engine=engine_by_name("ray", address=started.address), report=lambda *_: None,
    )  # fmt: skip
    directory = out / "trials" / "small" / "e" / "a-s0"
    assert (directory / "metrics.jsonl").read_text() == "a"
    assert not (directory / "checkpoints").exists(), "what only resuming needs stays on the node"
    assert (out / "trials" / "small" / "e" / "b-s0.json").exists()


def test_a_trial_that_fails_on_a_node_is_named(cluster, tmp_path: Path):
    started, _ = cluster
    with pytest.raises(RunError, match=r"trial e: bad, seed 0: .*broke"):
        run_jobs(
            jobs(["bad"], tmp_path / "log", 0.0), out=tmp_path,
            engine=engine_by_name("ray", address=started.address), report=lambda *_: None,
        )  # fmt: skip


def begun_on(node: str, log: Path) -> None:
    """Wait until the node has begun a trial, of which most is left then."""
    lines = len(log.read_text().splitlines())
    for _ in range(200):
        if any(line.endswith(node) for line in log.read_text().splitlines()[lines:]):
            return
        time.sleep(0.1)
    raise AssertionError("the second node takes no trial")


def test_a_node_that_dies_loses_nothing(cluster, tmp_path: Path):  # the last to use the cluster
    started, second = cluster
    log, names = tmp_path / "log", [f"t{i}" for i in range(6)]
    seen: list[tuple[int, str]] = []

    def report(done: int, total: int, what: str, left: float | None) -> None:
        seen.append((done, what))
        if done == 1:
            begun_on(second.node_id, log)
            started.remove_node(second, allow_graceful=False)

    run_jobs(jobs(names, log, 2.0), out=tmp_path, engine=engine_by_name("ray", address=started.address), report=report)
    assert [done for done, _ in seen] == list(range(7))
    assert sorted(what for _, what in seen[1:]) == [f"e: {name}, seed 0" for name in names]
    begun = Counter(line.split()[0] for line in log.read_text().splitlines())
    assert set(begun) == set(names) and sum(begun.values()) > len(names), "the dead node's trial was begun again"
    assert sorted(path.name for path in (tmp_path / "trials" / "small" / "e").glob("*.json")) == [
        f"{name}-s0.json" for name in names
    ]


def test_a_directory_is_packed_and_unpacked(tmp_path: Path):
    order = Noted("a", tmp_path / "log", 0.0)
    measured, archive = carry_out(order, str(tmp_path / "run"), str(tmp_path / "no" / "token"), None)
    assert measured["values"] == {"name": "a"} and archive is not None
    assert not (tmp_path / "run").exists()
    unpack(archive, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]
    assert packed(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rya",), "engine 'rya': unknown; nearest: ray"),
        (("local", None, "auto"), "address 'auto' with engine local"),
        (("ray", 2), "processes 2 with engine ray"),
    ],
)
def test_engines_refuse_what_is_for_the_other(arguments, words):
    with pytest.raises(UsageError, match=words):
        engine_by_name(*arguments)
