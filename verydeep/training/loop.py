"""`train`: a run from its config to its result, and `resume`, which goes on where a run was stopped.

A step is a function of (seed, step) and of what the steps before it left, so a checkpoint holds no generator state and
a resumed run is the unbroken one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from verydeep.config import RunConfig
from verydeep.data import Data
from verydeep.errors import UsageError
from verydeep.training.checkpoint import has_checkpoint
from verydeep.training.distributed import World, joined
from verydeep.training.observer import Observer
from verydeep.training.progress import FREE_TO_CHANGE
from verydeep.training.reporter import Reporter, make_reporter
from verydeep.training.result import Result
from verydeep.training.run import Run
from verydeep.training.rundir import RunDirectory, default_directory, read_config, read_result, refuse_run


def train(
    config: RunConfig,
    model: nn.Module | None = None,
    *,
    data: Data | None = None,
    observer: Observer | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Train a network from the start, in a new run directory.

    Args:    config: the run; open fields are taken from its protocol
             model: any module from images to logits, instead of the config's
             data: loaded data, instead of the config's
             observer: reads the network now and then, see `Observer`
             reporter: where progress is shown; default: the terminal
    Returns: the result; unfinished if SIGINT or SIGTERM stopped the run, which is then saved
    Raises:  UsageError: if the config cannot be carried out.
             RunError: if the run fails: too many non-finite steps, disk full, out of memory, an unreadable image.
    """
    config = config.resolved()
    if model is not None:
        config = replace(config, model=f"module:{type(model).__qualname__}")
    if data is not None:
        config = replace(config, data=data.name)
    with joined(config.device) as world, own_random_state(world):
        path = Path(config.out) if config.out else world.from_main(default_directory(config))
        assert isinstance(path, Path)
        if world.is_main:
            refuse_run(path)
        run = Run(config, path, world, model, data, observer=observer, reporter=reporter)
        directory = RunDirectory.create(path, config) if world.is_main else None
        with _closing(directory):
            return run.carry_out(directory)


def resume(
    path: str | Path,
    changes: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
    *,
    data: Data | None = None,
    observer: Observer | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Go on with a run from its last checkpoint, or from the start if it has none yet.

    Args:    path: the run directory
             changes: fields of the config given anew; those of FREE_TO_CHANGE may differ from the run's own
             model, data, observer, reporter: for a run that was given them
    Returns: the result; that of before if the run was finished
    Raises:  UsageError: if there is no run, it is in use, or a change would make it another run.
             RunError: as `train`.
    """
    path = Path(path)
    config = _changed(read_config(path).resolved(), changes or {}, path)
    if ".py:" in config.model and model is None and "model" not in (changes or {}):
        raise UsageError(f"resume {path}: its network is the user's own code; give --model {config.model} again")
    if config.model.startswith("module:") and model is None:
        raise UsageError(f"resume {path}: its network was given to `train` as a module; give it to `resume` again")
    with joined(config.device) as world, own_random_state(world):
        directory = RunDirectory.open(path) if world.is_main else None
        with _closing(directory):
            finished = read_result(path)
            if finished is not None:
                if world.is_main:
                    (reporter or make_reporter()).say(f"{path} is finished already; nothing was run")
                return Result(path, finished=True, values=finished)
            resumes = has_checkpoint(path / "checkpoints")
            run = Run(config, path, world, model, data, resumes=resumes, observer=observer, reporter=reporter)
            run.restore()
            return run.carry_out(directory)


@contextmanager
def own_random_state(world: World) -> Iterator[None]:
    """A run seeds torch's generators as it likes; the caller's are put back afterwards."""
    with torch.random.fork_rng(devices=[world.device] if world.device.type == "cuda" else []):
        yield


@contextmanager
def _closing(directory: RunDirectory | None) -> Iterator[None]:
    try:
        yield
    finally:
        if directory is not None:
            directory.close()


def _changed(config: RunConfig, changes: Mapping[str, Any], path: Path) -> RunConfig:
    """The run's config with what was given beside --resume."""
    changed = replace(config, **changes)
    for name in changes:
        own, given = getattr(config, name), getattr(changed, name)
        if given != own and (name not in FREE_TO_CHANGE or name in ("out", "model", "data")):
            raise UsageError(
                f"{name} {given!r} with resume {path}: the run has {own!r}; a resumed run keeps its settings"
            )
    return changed
