"""Runs the trials of experiments that are not done yet, keeps each as a file, and reads them back.

A trial's measurement lies in OUT/trials/SETTING/EXPERIMENT/TRIAL-sSEED.json. A stopped grid goes on where it was; a
finished trial is never run twice. Trials run side by side, one thread and one process each.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verydeep.errors import RunError, UsageError, canonical
from verydeep.experiments.experiment import Experiment, Measurement, Setting, Trial
from verydeep.files import json_text, write_whole


@dataclass(frozen=True)
class Job:
    """One trial with one seed."""

    experiment: Experiment
    trial: Trial
    seed: int
    setting: Setting

    def path(self, out: Path) -> Path:
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.trial.name)
        return out / "trials" / str(self.setting) / self.experiment.name / f"{name}-s{self.seed}.json"

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.experiment.seeded else ""
        return f"{self.experiment.name}: {self.trial.name}{seed}"


Report = Callable[[int, int, str, float | None], None]  # trials done, all, what was done last, seconds left


def jobs_of(experiments: Sequence[Experiment], *, setting: Setting, seeds: int) -> list[Job]:
    """Every trial with every seed, seed by seed, so that a grid that is stopped has whole seeds."""
    return [
        Job(experiment, trial, seed, setting)
        for seed in range(seeds)
        for experiment in experiments
        if seed == 0 or experiment.seeded
        for trial in experiment.trials(setting)
    ]


def run_jobs(jobs: Sequence[Job], *, source: str, out: Path, processes: int, report: Report) -> None:
    """Run what is not done.

    Args:    source: name of the experiments in SOURCES, by which a worker process finds them
             processes: trials at once; 1: in this process
    Raises:  RunError: if a trial fails, naming it; the others' files stay.
    """
    waiting = [job for job in jobs if not job.path(out).exists()]
    all_cost = sum(job.trial.cost for job in waiting)
    done_cost, done, start = 0.0, len(jobs) - len(waiting), time.monotonic()
    report(done, len(jobs), "", None)
    for job, measured in _measured(waiting, source, processes):
        path = job.path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json_text(measured))
        done, done_cost = done + 1, done_cost + job.trial.cost
        report(done, len(jobs), str(job), (time.monotonic() - start) / done_cost * (all_cost - done_cost))


def _measured(jobs: Sequence[Job], source: str, processes: int) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Jobs with their seconds and values, as they are done."""
    if processes <= 1:
        for job in jobs:
            yield job, _measure(source, job.experiment.name, job.trial.name, job.setting, job.seed)
        return
    longest_first = sorted(jobs, key=lambda job: (job.seed, -job.trial.cost))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        running: dict[Future, Job] = {
            pool.submit(_measure, source, job.experiment.name, job.trial.name, job.setting, job.seed): job
            for job in longest_first
        }
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    yield job, _result(future, job)
        finally:
            pool.shutdown(cancel_futures=True)


def _result(future: Future, job: Job) -> dict[str, Any]:
    try:
        return future.result()
    except (UsageError, RunError):
        raise
    except Exception as error:  # a worker's failure, whatever it was, is this trial's
        raise RunError(f"trial {job}: {type(error).__name__}: {error}; the trials done are kept") from error


def _measure(source: str, experiment: str, trial: str, setting: Setting, seed: int) -> dict[str, Any]:
    """Seconds and values of a trial, found by its names: what a worker process does."""
    from verydeep.experiments.sources import SOURCES

    experiments = {one.name: one for one in SOURCES[source].load().experiments}
    trials = {one.name: one for one in experiments[experiment].trials(setting)}
    start = time.monotonic()
    values = trials[trial].measure(seed)
    return {"seconds": time.monotonic() - start, "values": values}


def read_job(job: Job, *, out: Path) -> dict[str, Any]:
    """The seconds and values of a finished trial.

    Raises:  UsageError: if its file cannot be read.
    """
    path = job.path(out)
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"trial {path}: cannot be read ({error}); delete it to run it again") from None


def results_of(experiment: Experiment, jobs: Sequence[Job], *, out: Path) -> dict[str, list[Measurement]]:
    """The measurements of an experiment by trial, a list over seeds."""
    results: dict[str, list[Measurement]] = {}
    for job in jobs:
        if job.experiment is experiment:
            results.setdefault(job.trial.name, []).append(read_job(job, out=out)["values"])
    return results


def matching(names: Sequence[str], wanted: str) -> list[str]:
    """The names that contain `wanted`, whatever its case and hyphens."""
    return [name for name in names if canonical(wanted) in canonical(name)]
