"""The Ray engine on a cluster of two nodes, one of which is killed in the middle: no trial is lost or counted twice."""

import os
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.order import EXPERIMENT, LARGE, OrderedJob
from tests.experiments.test_training import CONFIG, untimed
from verydeep.errors import RunError, UsageError
from verydeep.experiments.data import give_data, small_data
from verydeep.experiments.engine import engine_by_name
from verydeep.experiments.experiment import Setting, Trial
from verydeep.experiments.grid import run_jobs
from verydeep.experiments.job import PROCESS_BYTES, Engine, Job
from verydeep.experiments.local_engine import in_turn
from verydeep.experiments.ray_engine import _needs, carry_out, packed, unpack
from verydeep.experiments.training import Training
from verydeep.training.step import train_step

NODE = {"memory": 4_000_000_000, "object_store_memory": 100_000_000, "num_cpus": 1}
TRAINING = Training("tiny", CONFIG)
FREE = "free"  # the one trial that waits for no gate
HELD_AT = 25  # the step of a training before which a gate is waited for; the step before it has its checkpoint


@dataclass(frozen=True)
class Gated:
    """What an order of these tests does beside its work: it notes where it is at work, and waits for a gate.

    Args:    log: a line each time that it is told so: name, node, process
             gate: a file that somebody has to make; None: it does not wait
    """

    log: Path
    gate: Path | None = None

    def note(self, name: str) -> None:
        with self.log.open("a") as log:
            log.write(f"{name} {_node()} {os.getpid()}\n")

    def wait(self) -> None:
        deadline = time.monotonic() + 120
        while self.gate is not None and not self.gate.exists():
            assert time.monotonic() < deadline, f"{self.gate} is not made"
            time.sleep(0.05)

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self.log.read_text().splitlines()] if self.log.exists() else []


@dataclass(frozen=True)
class Noted:
    """An order that says when it is begun, and leaves a run directory behind."""

    name: str
    gated: Gated

    def carry_out(self, directory: Path) -> dict[str, Any]:
        self.gated.note(self.name)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "metrics.jsonl").write_text(self.name)
        (directory / "checkpoints").mkdir(exist_ok=True)
        (directory / "checkpoints" / "last.pt").write_text("heavy")
        self.gated.wait()
        if self.name == "bad":
            raise ValueError("broke")
        return {"seconds": 0.0, "values": {"name": self.name}}


@dataclass(frozen=True)
class Trained:
    """An order of a training that no source declares; it notes each step."""

    training: Training
    seed: int
    gated: Gated

    def carry_out(self, directory: Path) -> dict[str, Any]:
        steps = 0

        def noted_step(*args: Any, **options: Any) -> Any:
            nonlocal steps
            steps += 1
            self.gated.note(f"seed{self.seed}")
            if steps == HELD_AT:
                self.gated.wait()
            return train_step(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("verydeep.training.run.train_step", noted_step)
            return {"seconds": 0.0, "values": self.training.carry_out(self.seed, directory)}


def _node() -> str:
    """The node that this is run on."""
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else "here"


def noted(names: list[str], log: Path, gate: Path | None = None) -> list[Job]:
    orders = [Noted(name, Gated(log, None if name == FREE else gate)) for name in names]
    return [
        OrderedJob("x", EXPERIMENT, Trial(order.name, lambda seed: {}), 0, Setting(), own=order) for order in orders
    ]


def trained(training: Training, seeds: int, gated: Gated) -> list[Job]:
    return [
        OrderedJob("x", EXPERIMENT, training, seed, Setting(), own=Trained(training, seed, gated))
        for seed in range(seeds)
    ]


def measured_by(engine: Engine, jobs: list[Job], out: Path) -> list[dict[str, Any]]:
    run_jobs(jobs, out=out, engine=engine, report=lambda *_: None)
    return [untimed(job.read(out)["values"]) for job in jobs]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of one node, the head."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'verydeep[ray]'")
    from ray.cluster_utils import Cluster

    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", ":".join(sys.path))  # of the nodes' workers, which import this file
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 2}
    started = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": quick})
    yield started
    ray.shutdown()
    started.shutdown()
    patch.undo()


@pytest.fixture
def second(cluster):
    """The node beside the head; a new one, where a test has killed the last."""
    return next(iter(cluster.worker_nodes), None) or cluster.add_node(**NODE)


@pytest.fixture
def engine(cluster, second) -> Engine:
    return engine_by_name("ray", address=cluster.address)


def on_disks_of_their_own(monkeypatch, tmp_path: Path) -> None:
    """No node sees the directory of results."""
    monkeypatch.setattr(
        "verydeep.experiments.ray_engine._mark", lambda out: nullcontext(tmp_path / "elsewhere" / "token")
    )


def kill_at_work(cluster, node, gated: Gated, *, lines: int = 1) -> None:
    """Kill a node once it has noted so many lines and waits for the gate, with the process; then open the gate."""
    deadline = time.monotonic() + 120
    while len(own := [line for line in gated.lines() if line[1] == node.node_id and line[0] != FREE]) < lines:
        assert time.monotonic() < deadline, "the second node takes no trial"
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
    with suppress(ProcessLookupError):
        os.kill(int(own[-1][2]), signal.SIGKILL)
    assert gated.gate is not None
    gated.gate.touch()


def test_a_trial_that_fails_on_a_node_is_named(engine, tmp_path: Path):
    with pytest.raises(RunError, match=r"^trial e: bad, seed 0: ValueError: broke; the trials done are kept$"):
        run_jobs(noted(["bad"], tmp_path / "log"), out=tmp_path, engine=engine, report=lambda *_: None)


def test_what_no_node_holds_is_refused_before_anything_runs(engine, tmp_path: Path):
    jobs = [*noted(["a"], tmp_path / "log"), *trained(LARGE, 1, Gated(tmp_path / "log"))]
    words = r"trial e: large, seed 0: needs 1 CPU, 0 GPU and .*GB of one node; the largest has 1 CPU, 0 GPU and 4GB;"
    with pytest.raises(UsageError, match=words):
        run_jobs(jobs, out=tmp_path, engine=engine, report=lambda *_: None)
    assert not (tmp_path / "log").exists()


def test_a_training_on_a_gpu_has_a_process_of_its_own_and_little_of_the_memory(cluster, engine, tmp_path: Path):
    gated = Gated(tmp_path / "log")
    node = cluster.add_node(**NODE, num_gpus=1)  # Ray believes it
    jobs: list[Job] = [
        OrderedJob("x", EXPERIMENT, LARGE, seed, Setting(), own=Noted(str(seed), gated)) for seed in range(2)
    ]
    try:
        run_jobs(jobs, out=tmp_path / "out", engine=engine, report=lambda *_: None)
    finally:
        cluster.remove_node(node)
        cluster.wait_for_nodes()  # until it is known to be gone
    assert [(name, on) for name, on, _ in gated.lines()] == [("0", node.node_id), ("1", node.node_id)]
    assert len({process for *_, process in gated.lines()}) == 2, "CUDA once initialised sees no other GPU"


def test_a_training_on_data_sent_to_it_gives_the_numbers_of_this_machine(engine, tmp_path: Path, monkeypatch):
    on_disks_of_their_own(monkeypatch, tmp_path)
    training = Training("sent", replace(CONFIG, data=f"folder:{tmp_path}/absent"))
    give_data(training.data_key, small_data())  # what only this process has: no node could load it
    gated = Gated(tmp_path / "log")
    jobs = trained(training, 2, gated)
    there = measured_by(engine, jobs, tmp_path / "there")
    assert "here" not in {node for _, node, _ in gated.lines()}
    assert there == measured_by(in_turn, jobs, tmp_path / "here")
    for job in jobs:
        names = {path.name for path in job.directory(tmp_path / "there").iterdir()}
        assert {"config.yaml", "metrics.jsonl", "result.json", "model.safetensors"} <= names
        assert "checkpoints" not in names, "what only resuming needs stays on the node"


def test_a_training_whose_node_dies_goes_on_from_its_checkpoint(cluster, second, engine, tmp_path: Path):
    gated = Gated(tmp_path / "log", tmp_path / "gate")
    jobs = trained(TRAINING, 2, gated)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_at_work, cluster, second, gated, lines=HELD_AT)
        broken = measured_by(engine, jobs, tmp_path / "broken")
        killing.result()
    steps = Counter((name, node == second.node_id) for name, node, _ in gated.lines())
    (killed,) = (name for name, on_second in steps if on_second)
    (other,) = {"seed0", "seed1"} - {killed}
    assert steps == {(killed, True): HELD_AT, (killed, False): 60 - (HELD_AT - 1), (other, False): 60}
    assert broken == measured_by(in_turn, jobs, tmp_path / "whole")


@pytest.mark.parametrize("shared", [True, False])
def test_a_node_that_dies_loses_nothing(shared: bool, cluster, second, engine, tmp_path: Path, monkeypatch):
    if not shared:
        on_disks_of_their_own(monkeypatch, tmp_path)
    names = ["a", "b", "c", FREE]
    gated, out = Gated(tmp_path / "log", tmp_path / "gate"), tmp_path / "out"
    seen: list[tuple[int, str]] = []
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_at_work, cluster, second, gated)
        jobs = noted([FREE, "a", "b", "c"], gated.log, gated.gate)
        run_jobs(jobs, out=out, engine=engine, report=lambda done, total, what, left: seen.append((done, what)))
        killing.result()
    assert [done for done, _ in seen] == list(range(5))
    assert sorted(what for _, what in seen[1:]) == [f"e: {name}, seed 0" for name in names]
    begun = Counter(name for name, *_ in gated.lines())
    assert set(begun) == set(names) and sum(begun.values()) > len(names), "the dead node's trial was begun again"
    results = out / "trials" / "small" / "e"
    assert sorted(path.name for path in results.glob("*.json")) == [f"{name}-s0.json" for name in names]
    assert [(results / f"{name}-s0" / "metrics.jsonl").read_text() for name in names] == names
    assert {(results / f"{name}-s0" / "checkpoints").exists() for name in names} == {shared}


def test_a_directory_is_packed_and_unpacked(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    order = Noted("a", Gated(tmp_path / "log"))
    measured, archive = carry_out(order, tmp_path / "run", tmp_path / "no" / "token", 3, None)
    assert measured["values"] == {"name": "a"} and archive is not None
    assert not (tmp_path / "run").exists() and os.environ["LOCAL_WORLD_SIZE"] == "3"
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


def test_a_training_takes_a_gpu_where_there_are_some():
    (training,) = trained(LARGE, 1, Gated(Path("log")))
    (other,) = noted(["a"], Path("log"))
    assert _needs(training, gpus=True) == {"CPU": 1, "GPU": 1, "memory": PROCESS_BYTES}, "its step is in the GPU's"
    assert _needs(training, gpus=False) == {"CPU": 1, "GPU": 0, "memory": PROCESS_BYTES + LARGE.needed_bytes}
    for gpus in (True, False):
        assert _needs(other, gpus=gpus) == {"CPU": 1, "GPU": 0, "memory": PROCESS_BYTES}
