"""Loggers: what each receives, once; a resumed run goes on under the same id; one that fails ends no training.

The interface is tested with a logger of this file; Weights & Biases offline and MLflow in a folder, where installed.
"""

import json
import math
import sys
from collections import defaultdict
from pathlib import Path
from typing import ClassVar

import pytest

from tests.training.test_run import killed_after, metrics
from verydeep.cli import main
from verydeep.errors import RunError, UsageError
from verydeep.training import logger
from verydeep.training.loop import resume, train


class Fake:
    """Keeps what it is given, by id; raises where a test says so."""

    received: ClassVar[dict[str, list[tuple[int, dict[str, float]]]]] = defaultdict(list)
    configs: ClassVar[list[dict]] = []
    closed: ClassVar[list[bool]] = []
    fails: ClassVar[set[str]] = set()
    where = "in memory"

    def __init__(self, path, config, *, run_id, from_step):
        self._may_fail("start")
        if run_id is None:
            self.configs.append(dict(config))
        self.run_id = run_id or f"id-{len(self.configs)}"

    def log(self, scalars, step):
        self._may_fail("log")
        self.received[self.run_id].append((step, dict(scalars)))

    def close(self, *, failed):
        self.closed.append(failed)
        self._may_fail("close")

    def _may_fail(self, where: str):
        if where in self.fails:
            raise ConnectionError(f"no network\nat {where}")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """`--logger fake`, its package being there."""
    monkeypatch.setitem(logger.LOGGERS, "fake", Fake)
    monkeypatch.setitem(sys.modules, "fake", logger)
    for kept in (Fake.received, Fake.configs, Fake.closed, Fake.fails):
        kept.clear()
    return Fake


def scalars(path: Path) -> list[tuple[int, dict[str, float]]]:
    """What loggers should have received, by metrics.jsonl, without what depends on the clock."""
    lines = [dict(line) for line in metrics(path)]
    kinds = [(line.pop("kind"), line.pop("step"), line) for line in lines]
    return [
        (step, {f"{kind}/{name}": value for name, value in line.items() if isinstance(value, (int, float))})
        for kind, step, line in kinds
    ]


def without_clock(received: list[tuple[int, dict[str, float]]]) -> list[tuple[int, dict[str, float]]]:
    return [(step, {k: v for k, v in line.items() if k != "train/images_per_second"}) for step, line in received]


def test_every_number_with_its_step_and_the_config_once(small, fake, capsys):
    config = small(logger="fake")
    path = train(config).directory
    assert without_clock(fake.received["id-1"]) == scalars(path) and len(scalars(path)) == 4
    assert fake.configs == [config.resolved().to_dict()] and fake.closed == [False]
    assert "train/images_per_second" in fake.received["id-1"][0][1]
    assert list(path.glob("events.*"))  # TensorBoard always
    assert "logger fake: in memory" in capsys.readouterr().out


def test_a_resumed_run_goes_on_under_its_id(small, fake, monkeypatch):
    config = small(logger="fake", checkpoint_seconds=0.0)
    killed_after(monkeypatch, 6, lambda: train(config))
    resume(config.out)
    assert list(fake.received) == ["id-1"] and len(fake.configs) == 1 and fake.closed == [True, False]
    assert [step for step, _ in fake.received["id-1"]] == [4, 8, 12, 12]
    assert json.loads((Path(config.out) / "loggers.json").read_text()) == {"fake": "id-1"}


def test_a_resumed_run_may_have_another_logger(small, fake, monkeypatch):
    """It changes no number; one that comes later is told the config, and the numbers from there on."""
    config = small(checkpoint_seconds=0.0)
    killed_after(monkeypatch, 6, lambda: train(config))
    assert resume(config.out, {"logger": "fake"}).finished
    assert [step for step, _ in fake.received["id-1"]] == [8, 12, 12] and len(fake.configs) == 1


def test_one_that_fails_is_named_once_and_the_training_goes_on(small, fake, capsys):
    fake.fails.add("log")
    config = small(logger="fake")
    result = train(config)
    assert result.finished and len(metrics(result.directory)) == 4
    said = [line for line in capsys.readouterr().out.splitlines() if "logger fake: failed" in line]
    assert said == ["logger fake: failed at step 4 (ConnectionError: no network); left out from here on"]


def test_one_that_cannot_be_closed_is_no_failure(small, fake, capsys):
    fake.fails.add("close")
    assert train(small(logger="fake")).finished
    assert "logger fake: not closed (ConnectionError: no network)" in capsys.readouterr().out


def test_one_that_cannot_start_ends_the_run_before_its_first_step(small, fake):
    fake.fails.add("start")
    config = small(logger="fake")
    with pytest.raises(RunError, match=r"logger fake: cannot start \(ConnectionError: no network\); .*--resume "):
        train(config)
    fake.fails.clear()
    assert resume(config.out).finished and len(fake.received["id-1"]) == 4


def test_several_and_spaces_and_tensorboard_is_there_anyway(small, fake):
    assert logger.logger_names("tensorboard, fake,fake") == ["tensorboard", "fake"]
    assert logger.logger_names("FAKE") == ["tensorboard", "fake"]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_an_absent_package_is_one_line(name: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    assert main(["train", "--logger", name, "--out", str(tmp_path / "run")]) == 2
    line = f"verydeep: error: logger {name}: {name} is not installed; pip install 'verydeep[{name}]'\n"
    assert capsys.readouterr().err == line and list(tmp_path.iterdir()) == []


def test_an_unknown_logger_is_one_line(small):
    with pytest.raises(UsageError, match="logger 'wanbd': unknown; nearest: wandb"):
        train(small(logger="tensorboard,wanbd"))
    with pytest.raises(UsageError, match="logger '': unknown"):
        train(small(logger="wandb,"))


def test_ids_that_are_none_are_refused(small, fake, monkeypatch):
    config = small(logger="fake", checkpoint_seconds=0.0)
    killed_after(monkeypatch, 2, lambda: train(config))
    (Path(config.out) / "loggers.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"loggers\.json: is not as verydeep wrote it; mend or delete it"):
        resume(config.out)


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path, fake):
    with logger.Loggers(["fake"], tmp_path, {}, from_step=0, say=lambda text: None) as loggers:
        loggers.log("bad", 3, {"site": "stem", "count": 2, "loss": None, "inf": math.inf})
    assert fake.received["id-1"] == [(3, {"bad/count": 2, "bad/inf": math.inf})]


def test_tensorboard_holds_every_number(small):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    path = train(small()).directory
    events = EventAccumulator(str(path)).Reload()
    for name in ("train/loss", "train/lr", "test/error_percent"):
        held = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(step, line[name]) for step, line in scalars(path) if name in line]
        assert [step for step, _ in held] == [step for step, _ in expected]
        assert [value for _, value in held] == pytest.approx([value for _, value in expected], rel=1e-6)


# The services' own packages, without a network


@pytest.mark.filterwarnings("ignore")  # theirs, not ours
def test_wandb_offline(small, monkeypatch, capsys):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = small(logger="wandb", checkpoint_seconds=0.0)
    killed_after(monkeypatch, 6, lambda: train(config))
    assert resume(config.out).finished
    path = Path(config.out)
    run_id = json.loads((path / "loggers.json").read_text())["wandb"]
    files = sorted(path.glob(f"wandb/offline-run-*-{run_id}/run-{run_id}.wandb"))
    assert files and wandb.run is None
    wandb.teardown()  # its service writes the last of the files
    kept = b"".join(file.read_bytes() for file in files)
    for step, line in scalars(path):
        for name, value in line.items():
            text = json.dumps(value).removesuffix(".0")
            assert name.encode() in kept and text.encode() in kept, (step, name)
    assert "logger wandb: " in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # theirs, not ours
def test_mlflow_in_a_folder(small, monkeypatch, tmp_path: Path):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path / 'store'}")
    config = small(logger="mlflow", checkpoint_seconds=0.0)
    killed_after(monkeypatch, 6, lambda: train(config))
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("verydeep").experiment_id])
    assert found.info.status == "FAILED" and found.data.params["batch_size"] == "32"
    assert resume(config.out).finished
    run = client.get_run(json.loads((Path(config.out) / "loggers.json").read_text())["mlflow"])
    assert (run.info.run_id, run.info.run_name, run.info.status) == (found.info.run_id, "run", "FINISHED")
    for name in ("train/loss", "test/error_percent"):
        held = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        assert sorted(held) == [(step, line[name]) for step, line in scalars(Path(config.out)) if name in line]
