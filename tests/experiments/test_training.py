"""A training as a trial: stopped, killed, resumed it measures what an unbroken one does; it is never run twice."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.experiments.data import DATA_FIELDS, data_of
from verydeep.experiments.experiment import Experiment, Setting
from verydeep.experiments.grid import jobs_of, results_of, run_jobs
from verydeep.experiments.job import Order
from verydeep.experiments.local_engine import in_turn
from verydeep.experiments.training import FRACTIONS, Training
from verydeep.training.setup import load_data_of
from verydeep.training.step import train_step

CONFIG = RunConfig(
    model="preact_resnet8_cifar", width=4, steps=60, batch_size=32, eval_steps=20, checkpoint_seconds=0.0
)
TIMES = ("seconds", "peak_memory_bytes")  # all that may differ between two runs of one seed


def untimed(measured: dict) -> dict:
    return {name: value for name, value in measured.items() if name not in TIMES}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """An unbroken training."""
    directory = tmp_path_factory.mktemp("whole") / "tiny-s3"
    return directory, Training("tiny", CONFIG).carry_out(3, directory)


def test_it_is_an_ordinary_run_directory(whole):
    directory, measured = whole
    names = {path.name for path in directory.iterdir()}
    assert {"config.yaml", "metrics.jsonl", "result.json", "model.safetensors", "checkpoints"} <= names
    result = json.loads((directory / "result.json").read_text())
    assert measured["test_error_percent"] == result["test_error_percent"] and measured["steps"] == 60
    assert [step for step, _ in measured["test_curve"]] == [20, 40, 60]
    assert measured["curve"][-1][0] == 60 and not measured["diverged"]
    assert 0 <= measured["recalibrated_test_error_percent"] <= 100


def test_signals_are_read_at_fractions_of_the_run(whole):
    observed = whole[1]["observed"]
    assert [one["step"] for one in observed] == sorted({round(fraction * 60) for fraction in FRACTIONS})
    assert all(len(one["gradient_norm"]) == 3 and one["gain_product"] == 1.0 for one in observed)
    assert observed[0]["signal"] != observed[-1]["signal"]


def test_reading_does_not_change_the_training(whole, tmp_path: Path):
    from verydeep.training.loop import train

    alone = train(RunConfig.from_dict(CONFIG.to_dict() | {"seed": 3, "out": str(tmp_path / "alone")}))
    assert alone.values["test_loss"] == json.loads((whole[0] / "result.json").read_text())["test_loss"]


def test_stopped_in_the_middle_it_goes_on(whole, tmp_path: Path, monkeypatch):
    steps = 0

    def stopping(*args, **options):
        nonlocal steps
        steps += 1
        if steps == 37:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(*args, **options)

    monkeypatch.setattr("verydeep.training.run.train_step", stopping)
    with pytest.raises(KeyboardInterrupt):
        Training("tiny", CONFIG).carry_out(3, tmp_path / "tiny-s3")
    assert untimed(Training("tiny", CONFIG).carry_out(3, tmp_path / "tiny-s3")) == untimed(whole[1])
    assert steps == 60, "no step was taken twice"


def test_killed_it_goes_on_from_its_checkpoint(whole, tmp_path: Path):
    directory = tmp_path / "tiny-s3"
    code = (
        "from pathlib import Path; from tests.experiments.test_training import CONFIG; "
        "from verydeep.experiments.training import Training; "
        f"Training('tiny', CONFIG).carry_out(3, Path({str(directory)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    metrics = directory / "metrics.jsonl"
    for _ in range(600):
        if metrics.exists() and '"step": 10' in metrics.read_text():
            break
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert untimed(Training("tiny", CONFIG).carry_out(3, directory)) == untimed(whole[1])


def test_a_run_that_diverges_counts_as_chance(tmp_path: Path):
    wild = RunConfig(model="resnet8_cifar", width=4, norm="none", steps=30, lr=1e20, warmup=0.0, max_bad_steps=5)
    measured = Training("wild", wild).carry_out(0, tmp_path / "wild")
    assert measured["diverged"] and measured["test_error_percent"] == pytest.approx(90)
    assert json.dumps(measured)


def test_data_are_found_by_every_field_that_loads_them(monkeypatch):
    class Noting:
        """A config that notes which of its fields are read."""

        def __getattr__(self, name: str):
            read.add(name)
            return getattr(RunConfig(), name)

    read: set[str] = set()
    monkeypatch.setattr("verydeep.training.setup.load_data", lambda *args, **options: None)
    load_data_of(Noting())
    assert read == {*DATA_FIELDS, "seed", "validation"}


def test_seeds_share_decoded_images_and_not_their_augmentation():
    first, second = (data_of(RunConfig(seed=seed).resolved()) for seed in (0, 1))
    assert first.train.labels is second.train.labels
    assert not (first.train.draws(0) == second.train.draws(0)).all()
    held_out = data_of(RunConfig(seed=1, validation=100).resolved())
    assert len(held_out.validation) == 100 and len(held_out.train) == len(first.train) - 100


def test_memory_is_declared_before_it_is_taken():
    small, deep = (Training("x", RunConfig(model=f"preact_resnet{depth}_cifar")).needed_bytes for depth in (8, 110))
    assert 0 < small < deep / 5
    budget = RunConfig(model="preact_resnet110_cifar", data="cifar10", memory_budget="100MB")
    assert Training("x", budget).needed_bytes < Training("x", RunConfig(data="cifar10")).needed_bytes


def experiment(name: str, trainings: list[Training]) -> Experiment:
    return Experiment(name, "trained", name, lambda setting: trainings, lambda results, setting: {})


def test_two_experiments_share_a_training(tmp_path: Path, monkeypatch):
    first, second = Training("a", CONFIG), Training("b", CONFIG)
    both = [experiment("one", [first, second]), experiment("two", [first])]
    jobs = jobs_of("table1", both, setting=Setting(), seeds=1)
    ran: list[Path] = []
    monkeypatch.setattr(
        Order, "carry_out", lambda self, directory: ran.append(directory) or {"seconds": 1, "values": {}}
    )
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        run_jobs(jobs, out=tmp_path, engine=in_turn, report=lambda done, total, *_: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2), (2, 2)]
    assert [path.name for path in ran] == ["a-s0", "b-s0"]
    assert results_of(both[1], jobs, out=tmp_path) == {"a": [{}]}


def test_a_training_whose_data_may_be_absent_is_left_out(tmp_path: Path):
    here = Training("here", CONFIG)
    absent = RunConfig.from_dict(CONFIG.to_dict() | {"data": f"parquet:{tmp_path}"})
    optional, needed = Training("optional", absent, optional=True), Training("needed", absent)
    jobs = jobs_of("table1", [experiment("one", [here, optional, needed])], setting=Setting(), seeds=1)
    assert [job.trial.name for job in jobs] == ["here", "needed"], "what must be there is an error where it is not"
    with pytest.raises(UsageError, match="parquet"):
        data_of(needed.config.resolved())
