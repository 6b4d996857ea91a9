"""Trials on this machine: one after another, or in processes side by side."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch

from verydeep.experiments.job import Engine, Job, Order, longest_first
from verydeep.memory.system import free_bytes

INTERRUPTED = 130  # exit code, as of the command line


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
                        running[pool.submit(_carry_out, job.order, job.directory(out))] = job
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        job = running.pop(future)
                        memory.leave(job)
                        yield job, job.collected(future.result)
            finally:
                pool.shutdown(cancel_futures=True)

    return engine


def _carry_out(order: Order, directory: Path) -> dict[str, Any]:
    """What a worker does. Asked to stop, it saves and ends its process: the pool would wait for ever for one alive."""
    try:
        return order.carry_out(directory)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


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
