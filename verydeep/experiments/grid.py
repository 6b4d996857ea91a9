"""Runs the trials of experiments that are not done yet, keeps each measurement as a file, and reads them back.

A trial's measurement lies in OUT/trials/SETTING/EXPERIMENT/TRIAL-sSEED.json; a training's in OUT/runs/SETTING, beside
its run directory. A stopped grid goes on where it was; a finished trial is never run twice.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from verydeep.errors import canonical
from verydeep.experiments.experiment import Experiment, Measurement, Setting
from verydeep.experiments.job import Engine, Job

Report = Callable[[int, int, str, float | None], None]  # trials done, all, what was done last, seconds left


def jobs_of(source: str, experiments: Sequence[Experiment], *, setting: Setting, seeds: int) -> list[Job]:
    """Every trial that is possible here with every seed, seed by seed, so that a grid that is stopped has whole seeds.

    A training that several experiments name is several jobs with one file.
    """
    return [
        Job(source, experiment, trial, seed, setting)
        for seed in range(seeds)
        for experiment in experiments
        if seed == 0 or experiment.seeded
        for trial in experiment.trials(setting)
        if trial.is_possible()
    ]


def run_jobs(jobs: Sequence[Job], *, out: Path, engine: Engine, report: Report) -> None:
    """Run what is not done, each file once.

    Raises:  UsageError, RunError: if a trial fails, naming it; the others' files stay.
    """
    distinct: dict[Path, Job] = {}
    for job in jobs:
        distinct.setdefault(job.path(out), job)
    waiting = [job for job in distinct.values() if not job.is_done(out)]
    all_cost = sum(job.trial.cost for job in waiting)
    done_cost, done, start = 0.0, len(distinct) - len(waiting), time.monotonic()
    report(done, len(distinct), "", None)
    for job, measured in engine(waiting, out):
        job.keep(measured, out)
        done, done_cost = done + 1, done_cost + job.trial.cost
        report(done, len(distinct), str(job), (time.monotonic() - start) / done_cost * (all_cost - done_cost))


def results_of(experiment: Experiment, jobs: Sequence[Job], *, out: Path) -> dict[str, list[Measurement]]:
    """The measurements of an experiment by trial, a list over seeds."""
    results: dict[str, list[Measurement]] = {}
    for job in jobs:
        if job.experiment is experiment:
            results.setdefault(job.trial.name, []).append(job.read(out)["values"])
    return results


def matching(names: Sequence[str], wanted: str) -> list[str]:
    """The names that contain `wanted`, whatever its case and hyphens."""
    return [name for name in names if canonical(wanted) in canonical(name)]
