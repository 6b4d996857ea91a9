"""Trials on this machine: one after another, or in processes side by side, each with a GPU where there are some."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import cycle, islice
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch

from verydeep.experiments.job import Engine, Job, Order, exiting_when_stopped, longest_first
from verydeep.memory.system import free_bytes


def in_turn(jobs: Sequence[Job], out: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
    """One after another, in this process."""
    for job in jobs:
        with job.failures_named():
            measured = job.order.carry_out(job.directory(out))
        yield job, measured


def side_by_side(processes: int) -> Engine:
    """As many at once as there are processes and the memory that is free holds; one thread each.

    Where there are GPUs a process sees one of them; more processes than GPUs share them evenly.
    """

    def engine(jobs: Sequence[Job], out: Path) -> Iterator[tuple[Job, dict[str, Any]]]:
        waiting = longest_first(jobs)
        gpus = visible_gpus()
        memory = _Memory(free_bytes(torch.device("cpu")), gpus=bool(gpus))
        context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
        places: SimpleQueue[str | None] = context.SimpleQueue()
        for gpu in islice(cycle(gpus or [None]), processes):
            places.put(gpu)
        with ProcessPoolExecutor(
            processes, mp_context=context, initializer=_start_worker, initargs=(processes, places)
        ) as pool:
            running: dict[Future, Job] = {}
            try:
                while waiting or running:
                    while waiting and len(running) < processes and memory.takes(waiting[0]):
                        job = waiting.pop(0)
                        running[pool.submit(_carry_out, job.order, job.directory(out))] = job
                    done = wait(running, return_when=FIRST_COMPLETED).done
                    for future in sorted(done, key=lambda future: future.exception() is not None):
                        job = running.pop(future)
                        memory.leave(job)
                        with job.failures_named():
                            measured = future.result()
                        yield job, measured
            finally:
                for worker in set(multiprocessing.active_children()) - others if running else ():
                    worker.terminate()  # a training saves what it has, and goes on another time
                pool.shutdown(cancel_futures=True)

    return engine


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it; CUDA is left uninitialised."""
    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(count)] if visible is None else visible.split(",")[:count]


def _start_worker(processes: int, places: "SimpleQueue[str | None]") -> None:
    """What a worker does first: it takes a place, the one GPU that CUDA will find once it is initialised."""
    torch.set_num_threads(1)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # of Ctrl-C the driver speaks; a training takes it as it does
    os.environ["LOCAL_WORLD_SIZE"] = str(processes)  # as torchrun says how many share the cores that decode images
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gpu = places.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _end_with_parent() -> None:
    """Stop this process as SIGTERM does once the one that started it is gone, however that ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _carry_out(order: Order, directory: Path) -> dict[str, Any]:
    """What a worker does. Asked to stop, its process ends: the pool would wait for ever for one alive."""
    with exiting_when_stopped():
        return order.carry_out(directory)


class _Memory:
    """What running jobs need, held against what was free before the first.

    Args:    free: bytes; None where it is not known
             gpus: whether trainings run on GPUs
    """

    def __init__(self, free: int | None, *, gpus: bool) -> None:
        self._free = free
        self._gpus = gpus
        self._taken: dict[Job, int] = {}

    def takes(self, job: Job) -> bool:
        """Take what the job needs, if that is there; the only job is always let in."""
        needed = job.needed_bytes(gpus=self._gpus)
        if self._taken and self._free is not None and sum(self._taken.values()) + needed > self._free:
            return False
        self._taken[job] = needed
        return True

    def leave(self, job: Job) -> None:
        del self._taken[job]
