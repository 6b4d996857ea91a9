"""A training as a trial: stopped, killed, resumed it measures what an unbroken one does; it is never run twice."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.experiments.data import DATA_FIELDS, data_of
from verydeep.experiments.experiment import Experiment, Setting
from verydeep.experiments.grid import jobs_of, results_of, run_jobs
from verydeep.experiments.job import Order
from verydeep.experiments.local_engine import in_turn
from verydeep.experiments.training import FRACTIONS, Training
from verydeep.saved import evaluate_run
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
    budget = RunConfig(model="preact_resnet110_cifar", image_size=32, memory_budget="100MB")
    assert Training("x", budget).needed_bytes < Training("x", replace(budget, memory_budget=None)).needed_bytes
    large = Training("x", RunConfig(model="preact_resnet8_cifar", image_size=16))
    assert large.needed_bytes > Training("x", RunConfig(model="preact_resnet8_cifar")).needed_bytes, (
        "by the data's size"
    )


def test_another_training_is_never_taken_for_it(whole, tmp_path: Path):
    directory, measured = whole
    other = Training("tiny", replace(CONFIG, lr=0.3))
    with pytest.raises(UsageError, match=r"tiny-s3: lr is .* there and 0\.3 here; give another"):
        other.carry_out(3, directory)
    for same in (replace(CONFIG, workers=1, out="elsewhere"), replace(CONFIG, seed=9)):
        Training("tiny", same).check(measured["config"], directory)
    with pytest.raises(UsageError, match="model is"):
        Training("tiny", replace(CONFIG, model="resnet8_cifar")).check(measured["config"], directory)
    data = [
        Training("x", replace(CONFIG, data=data)) for data in ("parquet:/a/cifar10", "parquet:b/cifar10", "cifar10")
    ]
    data[0].check(data[1].asked, directory)
    with pytest.raises(UsageError, match="data is 'cifar10' there and 'parquet:cifar10' here"):
        data[0].check(data[2].asked, directory)


def test_a_measurement_of_another_training_is_refused(whole, tmp_path: Path):
    asked, other = (experiment("one", [Training("tiny", replace(CONFIG, lr=lr))]) for lr in (CONFIG.lr, 0.3))
    job, another = (jobs_of("table1", [one], setting=Setting(), seeds=1)[0] for one in (asked, other))
    job.keep({"seconds": 1, "values": json.loads(json.dumps(whole[1]))}, tmp_path)
    assert job.read(tmp_path)["seconds"] == 1
    with pytest.raises(UsageError, match=r"tiny-s0\.json: lr is .* there and 0\.3 here"):
        another.read(tmp_path)


def test_imagenet_networks_are_tested_on_two_crops(tmp_path: Path):
    rows = torch.arange(24)
    for split in ("train", "val"):
        for i in rows.tolist():
            folder = tmp_path / "images" / split / str(i % 6)
            folder.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(
                0, 256, (40 + i, 44, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(i)
            )
            Image.fromarray(pixels.numpy()).save(folder / f"{i}.png")
    config = RunConfig(
        model="resnet18", width=8, data=f"folder:{tmp_path / 'images'}", image_size=28, batch_size=8, steps=2,
        protocol="he2016_imagenet", bn_group_size=8, lr=0.01, workers=0,
    )  # fmt: skip
    out = tmp_path / "run-s0"
    measured = Training("small", config, crops=True, recalibration_images=10).carry_out(0, out)
    for name, size in (("train_crop", {"image_size": 28}), ("large_crop", {"image_size": 40, "resize": 40})):
        alone = evaluate_run(out, **size)
        assert measured[name] == [alone["error_percent"], alone["top5_error_percent"]]
    assert measured["chance_error_percent"] == pytest.approx(100 * 5 / 6)


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
