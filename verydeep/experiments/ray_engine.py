"""Trials on a Ray cluster: a task each, retried on another node when one dies, collected by this process.

Nodes need verydeep, and the data where images are files; small images travel from here. Where a node sees the directory
of results, a training is kept there and goes on where a dead node left it; elsewhere it is kept on the node while it
runs, and sent here when it is done.
"""

import io
import logging
import os
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from verydeep.data import Data
from verydeep.data.resident import ResidentSplit
from verydeep.errors import UsageError, first_line
from verydeep.experiments.data import give_data, loaded_data
from verydeep.experiments.job import Engine, Job, Order, longest_first
from verydeep.experiments.training import Training
from verydeep.files import write_whole

LEFT_ON_THE_NODE = "checkpoints"  # of a run directory; what else it holds is sent


def on_cluster(address: str | None) -> Engine:
    """As many tasks at once as the nodes' cores, GPUs and memory hold.

    Args:    address: of the cluster; None: that of the environment, else a cluster of this machine alone
    Raises:  UsageError: if Ray is not installed.
    """
    try:
        import ray
    except ImportError:
        raise UsageError("engine ray: Ray is not installed; pip install 'verydeep[ray]'") from None

    def engine(jobs: Sequence[Job], out: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
        started = not ray.is_initialized()
        if started:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
            except ConnectionError as error:
                raise UsageError(f"address {address!r}: no Ray cluster there ({first_line(error)})") from None
        token = _mark(out)
        try:
            task = ray.remote(max_retries=-1)(carry_out)
            data: dict[Any, Any] = {key: ray.put(value) for key, value in _resident_data(jobs).items()}
            waiting = {
                task.options(**_needs(job, gpus=bool(ray.cluster_resources().get("GPU")))).remote(
                    job.order, str(job.directory(out).resolve()), str(token), data.get(_data_key(job))
                ): job
                for job in longest_first(jobs)
            }
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                job = waiting.pop(done)
                measured, archive = job.collected(partial(_result, done))
                if archive is not None:
                    unpack(archive, job.directory(out))
                yield job, measured
        finally:
            token.unlink(missing_ok=True)
            if started:
                ray.shutdown()

    return engine


def carry_out(
    order: Order, directory: str, token: str, data: tuple[Any, Data] | None
) -> tuple[dict[str, Any], bytes | None]:
    """What a node does: measure a trial in the directory of results if it sees it, else in one of its own.

    Args:    token: a file in the directory of results, by whose content a node knows that it sees that one
             data: small images and what they were loaded by
    Returns: seconds and values; the run directory, if it is not where the results are
    """
    if data is not None:
        give_data(*data)
    if _sees(Path(token)):
        return order.carry_out(Path(directory)), None
    with tempfile.TemporaryDirectory(prefix="verydeep-") as place:
        own = Path(place) / Path(directory).name
        return order.carry_out(own), packed(own)


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


def _needs(job: Job, *, gpus: bool) -> dict[str, Any]:
    """What a task asks of a node: one core, or one GPU with it; the memory that the job needs."""
    trains = isinstance(job.trial, Training)
    return {"num_cpus": 1, "num_gpus": 1 if gpus and trains else 0, "memory": job.needed_bytes, "name": str(job)}


def _mark(out: Path) -> Path:
    """A file of random content in the directory of results; a node that reads the same sees the same directory."""
    out.mkdir(parents=True, exist_ok=True)
    token = out.resolve() / f".driver-{os.getpid()}-{secrets.token_hex(8)}"
    write_whole(token, token.name)
    return token


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
