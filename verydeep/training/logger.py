"""Who receives a run's numbers beside metrics.jsonl: TensorBoard always, Weights & Biases and MLflow where asked for.

A `Logger` takes scalars by name and step; `Loggers` are those of one run. A package is imported only when it is asked
for. The main process has them, and metrics.jsonl has whatever one of them misses.
"""

import importlib
import os
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, final

from verydeep.errors import RunError, UsageError, described, resolve_name
from verydeep.files import json_text, parse_json, write_whole

RUN_IDS = "loggers.json"  # in the run directory: under which id each service knows the run


class Logger(Protocol):
    """What receives the scalars of a run.

    Args:    path: the run directory
             config: of the run, told once
             run_id: under which the service knows the run already; None for a new one
             from_step: what it holds from this step on will come again
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, run_id: str | None, from_step: int) -> None: ...
    @property
    def run_id(self) -> str | None: ...  # under which a resumed run goes on
    @property
    def where(self) -> str | None: ...  # the numbers can be seen, if that is to be said
    def log(self, scalars: Mapping[str, float], step: int) -> None: ...
    def close(self, *, failed: bool) -> None: ...


@final
class TensorBoard:
    """Event files in the run directory."""

    run_id = where = None

    def __init__(self, path: Path, config: Mapping[str, Any], *, run_id: str | None, from_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._events: Any = SummaryWriter(str(path), purge_step=from_step)

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)

    def close(self, *, failed: bool) -> None:
        self._events.close()


@final
class WeightsAndBiases:
    """A run of wandb, in project WANDB_PROJECT (default: verydeep); its local files lie in the run directory.

    A resumed run takes some steps again; the service holds their numbers already, and they are not sent twice.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, run_id: str | None, from_step: int) -> None:
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "verydeep"),
            id=run_id,
            name=path.resolve().name,
            dir=str(path),
            config=dict(config),
            resume=None if run_id is None else "allow",
            settings=wandb.Settings(silent=True, console="off", reinit="create_new"),
        )
        self.run_id = self._run.id
        self.where = self._run.dir if self._run.offline else self._run.url

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        if step >= self._run.step:
            self._run.log(dict(scalars), step=step)

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


@final
class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI, in experiment MLFLOW_EXPERIMENT_NAME (default: verydeep).

    A resumed run takes some steps again; the service holds their numbers already, and they are not sent twice.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], *, run_id: str | None, from_step: int) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        self._held: dict[str, int] = {}
        self._resumed = run_id is not None
        if run_id is not None:
            self._client.update_run(run_id, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "verydeep")
            experiment = self._client.get_experiment_by_name(name)
            experiment_id = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
            run_id = self._client.create_run(experiment_id, run_name=path.resolve().name).info.run_id
            parameters = [Param(field, str(value)) for field, value in config.items()]
            self._client.log_batch(run_id, params=parameters)
        self.run_id = run_id
        self.where = f"run {run_id}"

    def log(self, scalars: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in scalars.items() if step > self._held_until(name)]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _held_until(self, name: str) -> int:
        """The last step at which the service held a scalar when the run was taken up; -1 if it held none."""
        if name not in self._held:
            history = self._client.get_metric_history(self.run_id, name) if self._resumed else []
            self._held[name] = max((metric.step for metric in history), default=-1)
        return self._held[name]

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self.run_id, status="FAILED" if failed else "FINISHED")


LOGGERS: dict[str, type[Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def logger_names(text: str) -> list[str]:
    """The loggers that a config names, TensorBoard first, and their packages there.

    Args:    text: names separated by commas
    Raises:  UsageError: if a name is none, naming the nearest, or its package is not installed.

    >>> logger_names("tensorboard")
    ['tensorboard']
    """
    given = [resolve_name("logger", name.strip(), LOGGERS) for name in text.split(",")]
    names = list(dict.fromkeys(["tensorboard", *given]))
    for name in names[1:]:
        try:
            importlib.import_module(name)
        except ImportError:
            raise UsageError(f"logger {name}: {name} is not installed; pip install 'verydeep[{name}]'") from None
    return names


class Loggers:
    """The loggers of one run, open within its context; one that fails is left out from there on, which is said once.

    Args:    names: as `logger_names` gives them
             path: the run directory, which keeps the ids under which the services know the run
             from_step: see `Logger`
             say: reports one line
    Raises:  RunError: if one cannot start.
    """

    def __init__(
        self, names: list[str], path: Path, config: Mapping[str, Any], *, from_step: int, say: Callable[[str], None]
    ) -> None:
        self._say = say
        self._open: dict[str, Logger] = {}
        known = _run_ids(path)
        for name in names:
            try:
                logger = LOGGERS[name](path, config, run_id=known.get(name), from_step=from_step)
                self._open[name] = logger
                if logger.run_id is not None and logger.run_id != known.get(name):
                    known[name] = logger.run_id
                    write_whole(path / RUN_IDS, json_text(known) + "\n")
            except Exception as error:  # a service's own code: no network, no account, ...
                self.close(failed=True)
                raise RunError(
                    f"logger {name}: cannot start ({described(error)}); nothing is lost: verydeep train --resume "
                    f"{shlex.quote(str(path))}, and --logger tensorboard to go on without it"
                ) from error
            if logger.where is not None:
                say(f"logger {name}: {logger.where}")

    def log(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Pass on the numbers among the values, each under kind/name."""
        scalars = {f"{kind}/{name}": value for name, value in values.items() if isinstance(value, (int, float))}
        for name, logger in list(self._open.items()):
            try:
                logger.log(scalars, step)
            except Exception as error:  # as above: no reason to end a training
                del self._open[name]
                self._say(f"logger {name}: failed at step {step} ({described(error)}); left out from here on")

    def close(self, *, failed: bool = False) -> None:
        for name, logger in self._open.items():
            try:
                logger.close(failed=failed)
            except Exception as error:  # as above; on a full disk the last events do not fit
                self._say(f"logger {name}: not closed ({described(error)})")
        self._open = {}

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)


def _run_ids(path: Path) -> dict[str, str]:
    """The ids that the run directory keeps.

    Raises:  UsageError: if the file is not as verydeep wrote it.
    """
    if not (path / RUN_IDS).exists():
        return {}
    try:
        ids = parse_json((path / RUN_IDS).read_bytes())
    except (OSError, ValueError):
        ids = None
    if not isinstance(ids, dict) or not all(isinstance(value, str) for value in ids.values()):
        raise UsageError(f"{path / RUN_IDS}: is not as verydeep wrote it; mend or delete it")
    return ids
