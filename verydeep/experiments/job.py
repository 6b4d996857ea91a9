"""One trial with one seed: where its measurement is kept, what it needs of a machine, and how a worker measures it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verydeep.errors import RunError, UsageError, described
from verydeep.experiments.experiment import Experiment, Setting, Trial
from verydeep.experiments.training import Training
from verydeep.files import json_text, parse_json, write_whole

INTERRUPTED = 130  # exit code of a process that was asked to stop, as of the command line
PROCESS_BYTES = 1_000_000_000  # an interpreter with torch, and a data set of small images


@contextmanager
def exiting_when_stopped() -> Iterator[None]:
    """A context for a worker's trial: asked to stop, it has saved what it has, and its process ends."""
    try:
        yield
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


@dataclass(frozen=True)
class Order:
    """What a worker is told: a trial by its names, so that nothing but names travels.

    Args:    source: of SOURCES
    """

    source: str
    experiment: str
    trial: str
    setting: Setting
    seed: int

    def carry_out(self, directory: Path) -> dict[str, Any]:
        """Measure, in the worker.

        Args:    directory: of the run, if it is a training
        Returns: seconds and values
        """
        from verydeep.experiments.sources import SOURCES

        experiments = {one.name: one for one in SOURCES[self.source].load().experiments}
        trials = {one.name: one for one in experiments[self.experiment].trials(self.setting)}
        start = time.monotonic()
        values = trials[self.trial].carry_out(self.seed, directory)
        return {"seconds": time.monotonic() - start, "values": values}


@dataclass(frozen=True)
class Job:
    """A trial with one seed.

    Args:    source: of SOURCES
             experiment: the first that asks for it
    """

    source: str
    experiment: Experiment
    trial: Trial | Training
    seed: int
    setting: Setting

    @property
    def order(self) -> Order:
        return Order(self.source, self.experiment.name, self.trial.name, self.setting, self.seed)

    @property
    def trains(self) -> bool:
        """Whether it is a training, which takes a GPU where there is one."""
        return isinstance(self.trial, Training)

    def directory(self, out: Path) -> Path:
        """Where a training keeps its run; whatever experiment asks for it, it is the same."""
        name = "".join(c if c.isalnum() or c in "._-" else "-" for c in self.trial.name)
        setting = str(self.setting)
        place = out / "runs" / setting if self.trains else out / "trials" / setting / self.experiment.name
        return place / f"{name}-s{self.seed}"

    def path(self, out: Path) -> Path:
        """The file of its measurement, beside the directory."""
        directory = self.directory(out)
        return directory.with_name(f"{directory.name}.json")

    def is_done(self, out: Path) -> bool:
        """Whether it was measured before."""
        return self.path(out).exists()

    def needed_bytes(self, *, gpus: bool) -> int:
        """Memory that it takes of the machine, as far as it can be said beforehand.

        Args:    gpus: whether trainings run on GPUs, which have memory of their own
        """
        return PROCESS_BYTES + (self.trial.needed_bytes if isinstance(self.trial, Training) and not gpus else 0)

    def keep(self, measured: dict[str, Any], out: Path) -> None:
        """Write the measurement; from then on the job is done."""
        path = self.path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json_text(measured))

    def read(self, out: Path) -> dict[str, Any]:
        """The seconds and values of a finished trial.

        Raises:  UsageError: if its file cannot be read, or is of another training.
        """
        path = self.path(out)
        try:
            values = parse_json(path.read_text())
            if not isinstance(values, dict) or not {"seconds", "values"} <= values.keys():
                raise ValueError("without seconds and values")
        except (OSError, ValueError) as error:
            raise UsageError(f"trial {path}: cannot be read ({error}); delete it to run it again") from None
        if isinstance(self.trial, Training) and "config" in values["values"]:
            self.trial.check(values["values"]["config"], path)
        return values

    @contextmanager
    def failures_named(self) -> Iterator[None]:
        """A context for its work, or for what a worker sends of it: what fails there is told as this trial's.

        Raises:  UsageError: for one, with the trial before it.
                 RunError: for any other failure.
        """
        try:
            yield
        except UsageError as error:
            raise UsageError(f"trial {self}: {error}") from error
        except RunError as error:
            raise RunError(f"trial {self}: {error}") from error
        except Exception as error:  # whatever it was
            raise RunError(f"trial {self}: {described(error)}; the trials done are kept") from error

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.experiment.seeded else ""
        return f"{self.experiment.name}: {self.trial.name}{seed}"


# From jobs and the directory of results to each job with its seconds and values, in the order in which they are done.
Engine = Callable[[Sequence[Job], Path], Iterator[tuple[Job, dict[str, Any]]]]


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Seed by seed, and in a seed the longest first, so that no long one is left alone at the end."""
    return sorted(jobs, key=lambda job: (job.seed, -job.trial.cost))
