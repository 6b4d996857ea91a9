"""Runs the trials of experiments that are not done yet, keeps each as a file, and judges them all.

A trial's measurement lies in OUT/trials/EXPERIMENT/TRIAL-sSEED.json. A stopped grid goes on where it was; a finished
trial is never run twice.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verydeep.errors import UsageError
from verydeep.experiments.experiment import NOT_RUN, Experiment, Measurement, Trial, summary
from verydeep.files import json_text, write_whole


@dataclass(frozen=True)
class Job:
    """One trial with one seed."""

    experiment: Experiment
    trial: Trial
    seed: int

    def path(self, out: Path, scale: str) -> Path:
        return out / "trials" / scale / self.experiment.name / f"{self.trial.name}-s{self.seed}.json"

    def __str__(self) -> str:
        return f"{self.experiment.name} {self.trial.name} seed {self.seed}"


Report = Callable[[int, int, str, float | None], None]  # done, total, what, seconds left


def jobs_of(experiments: Sequence[Experiment], *, scale: str, seeds: int) -> list[Job]:
    """Every trial with every seed, seed by seed, so that a grid that is stopped has whole seeds."""
    return [
        Job(experiment, trial, seed)
        for seed in range(seeds)
        for experiment in experiments
        if seed == 0 or experiment.seeded
        for trial in experiment.trials(scale)
    ]


def run_jobs(jobs: Sequence[Job], *, out: Path, scale: str, report: Report) -> float:
    """Run what is not done, one after the other; returns the seconds that all of them took, those before included.

    Raises:  UsageError: if a trial's file cannot be read.
    """
    waiting = [job for job in jobs if not job.path(out, scale).exists()]
    costs = {id(job): job.trial.cost for job in waiting}
    start, spent = time.monotonic(), 0.0
    for done, job in enumerate(waiting):
        left = sum(costs[id(other)] for other in waiting[done:])
        rate = (time.monotonic() - start) / spent if spent else None
        report(len(jobs) - len(waiting) + done, len(jobs), str(job), None if rate is None else rate * left)
        began = time.monotonic()
        values = job.trial.measure(job.seed)
        path = job.path(out, scale)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json_text({"seconds": time.monotonic() - began, "values": values}))
        spent += job.trial.cost
    report(len(jobs), len(jobs), "done", 0.0)
    return sum(read_job(job, out=out, scale=scale)["seconds"] for job in jobs)


def read_job(job: Job, *, out: Path, scale: str) -> Measurement:
    """The seconds and values of a finished trial."""
    path = job.path(out, scale)
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"trial {path}: cannot be read ({error}); delete it to run it again") from None


def judged(experiment: Experiment, jobs: Sequence[Job], *, out: Path, scale: str) -> dict[str, Any]:
    """The verdicts of an experiment by claim id, and its charts.

    Returns: {"verdicts": {id: Verdict}, "charts": [...]}
    """
    results: dict[str, list[Measurement]] = {}
    for job in jobs:
        if job.experiment is experiment:
            results.setdefault(job.trial.name, []).append(read_job(job, out=out, scale=scale)["values"])
    return {"verdicts": dict(experiment.judge(results)), "charts": list(experiment.charts(results))}


def cell(identifier: str, published: Any, verdict: Any) -> dict[str, Any]:
    """One entry of NAME.json: the published value, the measured ones, their summary, the verdict."""
    if verdict is None:
        return {"id": identifier, "published": published, "measured": [], **summary([]), "verdict": NOT_RUN}
    return {
        "id": identifier,
        "published": published,
        "measured": list(verdict.measured),
        **summary(verdict.measured),
        "verdict": verdict.verdict,
        "quantity": verdict.quantity,
        "detail": verdict.detail,
        "interval": verdict.interval,
    }
