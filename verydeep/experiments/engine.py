"""Engines: how trials are run, one after another, in processes of this machine, or on a cluster (`ray_engine`)."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from verydeep.data.image_list import num_cores
from verydeep.errors import UsageError, resolve_name
from verydeep.experiments.job import Job
from verydeep.memory.system import free_bytes

ENGINES = ("local", "ray")

# From jobs and the directory of results to each job with its seconds and values, in the order in which they are done.
Engine = Callable[[Sequence[Job], Path], Iterator[tuple[Job, dict[str, Any]]]]


def in_turn(jobs: Sequence[Job], out: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
    """One after another, in this process."""
    for job in jobs:
        yield job, job.order.carry_out(job.directory(out))


def side_by_side(processes: int) -> Engine:
    """As many at once as there are processes and the memory that is free holds; one thread each."""

    def engine(jobs: Sequence[Job], out: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
        waiting = longest_first(jobs)
        memory = _Memory(free_bytes(torch.device("cpu")))
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            running: dict[Future, Job] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < processes and memory.takes(waiting[0]):
                        job = waiting.pop(0)
                        running[pool.submit(job.order.carry_out, job.directory(out))] = job
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        job = running.pop(future)
                        memory.leave(job)
                        yield job, job.collected(future.result)
            finally:
                pool.shutdown(cancel_futures=True)

    return engine


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Seed by seed, and in a seed the longest first, so that no long one is left alone at the end."""
    return sorted(jobs, key=lambda job: (job.seed, -job.trial.cost))


class _Memory:
    """What running jobs need, held against what was free before the first.

    Args:    free: bytes; None where it is not known
    """

    def __init__(self, free: int | None) -> None:
        self._free = free
        self._taken: dict[Job, int] = {}

    def takes(self, job: Job) -> bool:
        """Take what the job needs, if that is there; the only job is always let in."""
        needed = job.needed_bytes
        if self._taken and self._free is not None and sum(self._taken.values()) + needed > self._free:
            return False
        self._taken[job] = needed
        return True

    def leave(self, job: Job) -> None:
        del self._taken[job]


def engine_by_name(name: str, processes: int | None = None, address: str | None = None) -> Engine:
    """The engine of `--engine`, checked before anything runs.

    Args:    processes: of local; default: one a core
             address: of ray
    Raises:  UsageError: if the name is unknown, a value is for the other engine, or Ray is not installed.
    """
    name = resolve_name("engine", name, ENGINES)
    if name == "local" and address is not None:
        raise UsageError(f"address {address!r} with engine local: is for engine ray")
    if name == "ray" and processes is not None:
        raise UsageError(
            f"processes {processes} with engine ray: is for engine local; Ray runs as many as its nodes hold"
        )
    if name == "ray":
        from verydeep.experiments.ray_engine import on_cluster

        return on_cluster(address)
    processes = processes or num_cores()
    return in_turn if processes == 1 else side_by_side(processes)
