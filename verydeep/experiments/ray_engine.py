"""Trials on a Ray cluster: a task each, retried on another node when one dies, collected by this process.

Nodes need verydeep, and the data where images are files; small images travel from here. Where a node sees the directory
of results, a training is kept there and goes on where a dead node left it; elsewhere it is kept on the node while it
runs, and sent here when it is done. Tasks are cut to the nodes that are there when the grid is started; nodes that join
later take them too.
"""

import io
import logging
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from verydeep.data import Data
from verydeep.data.resident import ResidentSplit
from verydeep.errors import UsageError, first_line
from verydeep.experiments.data import give_data, loaded_data
from verydeep.experiments.job import Engine, Job, Order, exiting_when_stopped, longest_first
from verydeep.experiments.training import Training
from verydeep.files import write_whole
from verydeep.size import format_size

MOST_RETRIES = 20  # of a task whose node or process dies; more, and it may be the task that kills them
LEFT_ON_THE_NODE = "checkpoints"  # of a run directory; what else it holds is sent


def on_cluster(address: str | None) -> Engine:
    """As many tasks at once as the nodes' cores, GPUs and memory hold.

    Args:    address: of the cluster; None: that of the environment, else a cluster of this machine alone
    Returns: an engine, which raises UsageError if no cluster is there, or none of its nodes could hold some trial
    Raises:  UsageError: if Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("engine ray: Ray is not installed; pip install 'verydeep[ray]'") from None

    def engine(jobs: Sequence[Job], out: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
        with _joined(address), _mark(out) as token:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            gpus = any(node.get("GPU") for node in nodes)
            sharing = max(int(node.get("GPU" if gpus else "CPU", 1)) for node in nodes)
            needs = {job: _needs(job, gpus=gpus) for job in longest_first(jobs)}
            for job, need in needs.items():
                _check_that_a_node_holds(job, need, nodes)
            # A process that has used one GPU sees no other: where there are some, each task has a process of its own.
            task = ray.remote(max_retries=MOST_RETRIES, max_calls=1 if gpus else 0)(carry_out)
            data: dict[Any, Any] = {key: ray.put(value) for key, value in _resident_data(jobs).items()}
            waiting = {
                task.options(name=str(job), num_cpus=need["CPU"], num_gpus=need["GPU"], memory=need["memory"]).remote(
                    job.order, job.directory(out).resolve(), token, sharing, data.get(_data_key(job))
                ): job
                for job, need in needs.items()
            }
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                job = waiting.pop(done)
                with job.failures_named():
                    measured, archive = _result(done)
                if archive is not None:
                    unpack(archive, job.directory(out))
                yield job, measured

    return engine


def carry_out(
    order: Order, directory: Path, token: Path, sharing: int, data: tuple[Any, Data] | None
) -> tuple[dict[str, Any], bytes | None]:
    """What a node does: measure a trial in the directory of results if it sees it, else in one of its own.

    Args:    token: a file in the directory of results, by whose content a node knows that it sees that one
             sharing: tasks that a node may carry out at a time, which share the cores that decode images
             data: small images and what they were loaded by
    Returns: seconds and values; the run directory, if it is not where the results are
    """
    os.environ["LOCAL_WORLD_SIZE"] = str(sharing)  # as torchrun says it
    if data is not None:
        give_data(*data)
    with exiting_when_stopped():  # as before a node goes: Ray gives the task to another
        if _sees(token):
            return order.carry_out(directory), None
        with tempfile.TemporaryDirectory(prefix="verydeep-") as place:
            own = Path(place) / directory.name
            return order.carry_out(own), packed(own)


@contextmanager
def _joined(address: str | None) -> Iterator[None]:
    """A cluster joined for the time of the context; one that this process has joined before is used and kept."""
    import ray

    if ray.is_initialized():
        yield
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise UsageError(f"address {address!r}: no Ray cluster there ({first_line(error)})") from None
    try:
        yield
    finally:
        ray.shutdown()


def _result(reference: Any) -> Any:
    """What a task gave back.

    Raises:  whatever it raised, without the tracebacks of the node
    """
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def packed(directory: Path) -> bytes | None:
    """A run directory without its checkpoints, as a tar archive; None if there is none."""
    if not directory.is_dir():
        return None
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path in sorted(directory.iterdir()):
            if path.name != LEFT_ON_THE_NODE and path.is_file():
                tar.add(path, arcname=path.name)
    return archive.getvalue()


def unpack(archive: bytes, directory: Path) -> None:
    """Put the files of an archive that `packed` made into a directory, over what an earlier try left there."""
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        tar.extractall(directory, filter="data")


def _needs(job: Job, *, gpus: bool) -> dict[str, int]:
    """What a task asks of a node, by Ray's names: a core, for a training a GPU where there are some, and memory."""
    return {"CPU": 1, "GPU": 1 if gpus and job.trains else 0, "memory": job.needed_bytes(gpus=gpus)}


def _check_that_a_node_holds(job: Job, needs: Mapping[str, int], nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse what Ray would keep waiting for ever, without a word.

    Whether a cluster grows by itself, and how large its nodes may be, Ray does not say: those that are there must do.

    Args:    nodes: what each has in all, by Ray's names
    Raises:  UsageError: if no node has what the task needs, were it empty.
    """

    def held(node: Mapping[str, float]) -> list[bool]:
        return [node.get(name, 0) >= needs[name] for name in needs]

    if not any(all(held(node)) for node in nodes):
        largest = max(nodes, key=lambda node: (sum(held(node)), node.get("memory", 0)))
        raise UsageError(
            f"trial {job}: needs {_listed(needs)} of one node; the largest has {_listed(largest)}; add a larger node "
            "(ray start --memory BYTES says how large) before the grid starts, or choose other experiments with --only"
        )


def _listed(resources: Mapping[str, float]) -> str:
    cpus, gpus, memory = (int(resources.get(name, 0)) for name in ("CPU", "GPU", "memory"))
    return f"{cpus} CPU, {gpus} GPU and {format_size(memory)}"


@contextmanager
def _mark(out: Path) -> Iterator[Path]:
    """A file of random content in the directory of results; a node that reads the same sees the same directory."""
    out.mkdir(parents=True, exist_ok=True)
    token = out.resolve() / f".driver-{os.getpid()}-{secrets.token_hex(8)}"
    write_whole(token, token.name)
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)


def _sees(token: Path) -> bool:
    try:
        return token.read_text() == token.name
    except OSError:
        return False


def _data_key(job: Job) -> Any:
    return job.trial.data_key if isinstance(job.trial, Training) else None


def _resident_data(jobs: Sequence[Job]) -> dict[Any, tuple[Any, Data]]:
    """The data sets of small images that the jobs train on, by what they are loaded by."""
    keys = {_data_key(job) for job in jobs} - {None}
    loaded = {key: loaded_data(key) for key in keys}
    return {key: (key, data) for key, data in loaded.items() if isinstance(data.train, ResidentSplit)}
