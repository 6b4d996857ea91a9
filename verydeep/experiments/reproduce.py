"""`reproduce`: runs a source's experiments and writes what was published beside what was measured."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verydeep.errors import UsageError, nearest, resolve_name
from verydeep.experiments.data import loaded_data, small_data
from verydeep.experiments.experiment import Claim, Experiment, Results, Setting, Verdict, is_row, summary
from verydeep.experiments.grid import Report, jobs_of, matching, results_of, run_jobs
from verydeep.experiments.job import Engine, Job
from verydeep.experiments.local_engine import in_turn
from verydeep.experiments.page import sections_file, write_page
from verydeep.experiments.sources import SOURCES
from verydeep.experiments.training import Training
from verydeep.files import json_text, write_whole
from verydeep.report.number import is_number
from verydeep.report.section import NOT_RUN, Section, counts
from verydeep.versions import versions

USUAL_SEEDS = {"small": 1, "paper": 5}  # by scale
KINDS = ("exact", "stochastic", "trained")


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` leaves.

    Args:    path: NAME.json
             values: its contents: name, scale, command, versions, seconds, seeds, cells
    """

    path: Path
    values: dict[str, Any]

    def counts(self) -> dict[str, int]:
        """Cells by verdict."""
        return counts(self.values["cells"])


def reproduce(
    name: str,
    *,
    only: Sequence[str] = (),
    scale: str = "small",
    data: str | None = None,
    image_size: int | None = None,
    max_images: int | None = None,
    seeds: int | None = None,
    out: str | Path | None = None,
    engine: Engine = in_turn,
    command: str = "",
    report: Report = lambda done, total, what, left: None,
) -> Reproduction:
    """Measure a source's claims, or some of them; what was measured before in this setting is kept.

    Args:    name: of SOURCES
             only: kinds (exact, stochastic, trained) and parts of names of experiments or claims; empty: all
             scale, data, image_size, max_images: see `Setting`
             seeds: of the trained experiments; default: 1, at the paper's scale 5
             out: where NAME.json and the trials go; default: reproduced/ and the name of the work
             engine: how trials are run
    Returns: all claims; those of experiments that were left out are `not run`
    Raises:  UsageError: if a name is unknown or nothing is selected.
             RunError: if a trial fails.
    """
    name = resolve_name("reproduce", name, SOURCES)
    scale = resolve_name("scale", scale, USUAL_SEEDS)
    seeds = USUAL_SEEDS[scale] if seeds is None else seeds
    if seeds < 1:
        raise UsageError(f"seeds {seeds}: must be at least 1")
    source = SOURCES[name]
    loaded = source.load()
    chosen = select(loaded.experiments, only)
    directory = Path(out) if out is not None else Path("reproduced") / source.work.name
    setting = Setting(scale, data or "", image_size, max_images)
    jobs = jobs_of(name, chosen, setting=setting, seeds=seeds)
    for job in jobs:
        if job.is_done(directory):
            job.read(directory)  # what cannot be used is named before anything is measured
    _load_data([job for job in jobs if not job.is_done(directory)])
    run_jobs(jobs, out=directory, engine=engine, report=report)
    verdicts: dict[str, tuple[Experiment, Verdict]] = {}
    results = {experiment.name: results_of(experiment, jobs, out=directory) for experiment in chosen}
    for experiment in chosen:
        for claim, verdict in experiment.judge(results[experiment.name], setting).items():
            verdicts[claim] = experiment, verdict
    values = {
        "name": name,
        "scale": scale,
        "data": setting.data,
        "image_size": image_size,
        "max_images": max_images,
        "command": command,
        "versions": versions(),
        "seconds": sum(job.read(directory)["seconds"] for job in jobs),
        "seeds": seeds,
        "cells": [_cell(claim, verdicts.get(claim.id), setting) for claim in loaded.claims],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{name}.json"
    write_whole(path, json_text(values, indent=1) + "\n")
    sections = [_section(e, values["cells"], results[e.name], setting).to_dict() for e in chosen]
    stored = {"name": name, "title": source.work.title, "intro": source.work.intro, "sections": sections}
    write_whole(sections_file(directory, name), json_text(stored))
    write_page([directory], directory / f"{source.work.name}.html")
    return Reproduction(path, json.loads(path.read_text()))


def _load_data(jobs: Sequence[Job]) -> None:
    """Load what trainings need, so that absent data are named before anything is measured."""
    for setting in {job.setting for job in jobs if job.experiment.seeded and not isinstance(job.trial, Training)}:
        small_data(setting.data, setting.image_size, setting.max_images)
    for key in {job.trial.data_key for job in jobs if isinstance(job.trial, Training)}:
        loaded_data(key)


def _section(experiment: Experiment, cells: Sequence[dict[str, Any]], results: Results, setting: Setting) -> Section:
    """The part of the page that an experiment is."""
    own = [cell | {"claim": cell["what"]} for cell in cells if cell["id"] in experiment.claims]
    return Section(
        name=experiment.name,
        title=experiment.title,
        text=experiment.text,
        cells=own,
        charts=list(experiment.charts(results)),
        settings=f"{setting.describe()}; {experiment.settings}" if experiment.seeded else experiment.settings,
    )


def select(experiments: Sequence[Experiment], only: Sequence[str]) -> list[Experiment]:
    """The experiments that are of a kind in `only`, or whose name or one of whose claims contains an entry of it.

    Raises:  UsageError: if an entry selects nothing.
    """
    chosen: set[str] = set()
    for entry in only:
        of_kind = [e.name for e in experiments if e.kind == entry]
        named = [e.name for e in experiments if matching([e.name, *e.claims], entry)]
        if not of_kind and not named:
            known = [*KINDS, *(e.name for e in experiments)]
            raise UsageError(
                f"only {entry!r}: no such kind, experiment or claim; nearest: {', '.join(nearest(entry, known))}"
            )
        chosen |= set(of_kind or named)
    return [e for e in experiments if not only or e.name in chosen]


def _cell(claim: Claim, judged: tuple[Experiment, Verdict] | None, setting: Setting) -> dict[str, Any]:
    """One entry of NAME.json; `difference`, of the median from what was published, where both are one quantity."""
    about = {"id": claim.id, "kind": claim.kind, "section": claim.section, "what": claim.what, "unit": claim.unit}
    if judged is None:
        return about | {"published": claim.published, "measured": [], **summary([]), "verdict": NOT_RUN}
    experiment, verdict = judged
    numbers = summary(verdict.measured)
    difference = _difference(numbers["median"], claim.published) if setting.scale == "paper" else None
    return {
        **about,
        "published": claim.published,
        "measured": list(verdict.measured),
        **numbers,
        **({} if difference is None else {"difference": difference}),
        "verdict": verdict.verdict,
        "quantity": verdict.quantity,
        "detail": verdict.detail,
        "interval": verdict.interval,
        **verdict.beside,
        "experiment": experiment.name,
    }


def _difference(median: Any, published: Any) -> float | list[float] | None:
    """The measured median less the published one, of rows by column; None where they are no numbers.

    >>> _difference(4.5, {"median": 4.0, "mean": 4.1, "std": 0.2}), _difference([21.5, 6.0], [21.0, 5.5])
    (0.5, [0.5, 0.5])
    """
    number = published["median"] if isinstance(published, dict) else published
    if is_number(median) and is_number(number):
        return median - number
    if is_row(median) and is_row(number) and len(median) == len(number):
        return [value - given for value, given in zip(median, number, strict=True)]
    return None
