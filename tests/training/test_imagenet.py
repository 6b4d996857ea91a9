"""The ImageNet recipe from the command line, on real images: two processes train as one, both crops are measured."""

import json
from pathlib import Path

import pytest
import yaml

from tests.training.test_process import distributed, finish, metrics, start
from verydeep.cli import main
from verydeep.errors import UsageError
from verydeep.saved import evaluate_run

pytestmark = pytest.mark.data
SMALL = ["--model=preact_resnet18", "--protocol=he2016_imagenet", "--image-size=64", "--batch-size=64", "--steps=3"]


@pytest.fixture(scope="module")
def run(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps of two processes under torchrun."""
    path = tmp_path_factory.mktemp("imagenet") / "two"
    data = f"folder:{data_root / 'imagenet-sample' / 'val'}"
    out = finish(distributed(2, *SMALL, "--data", data, "--log-steps=1", "--workers=0", "--out", str(path)))
    assert "step 3/3" in out
    return path


def test_two_processes_train_as_one(run: Path, data_root: Path, tmp_path: Path):
    """Batch norms are over 32 images in both. Sums in another order, which three steps at lr 0.1 make larger."""
    data = f"folder:{data_root / 'imagenet-sample' / 'val'}"
    finish(start(*SMALL, "--data", data, "--log-steps=1", "--workers=0", "--out", str(tmp_path / "one")))
    one, two = metrics(tmp_path / "one"), metrics(run)
    assert [line["step"] for line in two] == [1, 2, 3]
    assert [line["loss"] for line in two] == pytest.approx([line["loss"] for line in one], rel=1e-3)
    assert [line["lr"] for line in two] == pytest.approx([0.1, 0.01, 0.001])  # a third of the run each
    assert json.loads((run / "result.json").read_text())["processes"] == 2
    assert yaml.safe_load((run / "config.yaml").read_text())["color_jitter"] == "pca"


@pytest.mark.parametrize(("flags", "image_size", "resize"), [(["--resize=73"], 64, 73), ([], 64, 73),
                                                             (["--image-size=96", "--resize=96"], 96, 96)])  # fmt: skip
def test_both_crops_are_measured(run: Path, data_root: Path, tmp_path: Path, flags, image_size: int, resize: int):
    figures = tmp_path / "figures.json"
    data = f"folder:{data_root / 'imagenet-sample'}"
    assert main(["evaluate", str(run), "--data", data, *flags, "--json", str(figures), "--device=cpu"]) == 0
    measured = json.loads(figures.read_text())
    assert (measured["image_size"], measured["resize"], measured["num_images"]) == (image_size, resize, 207)
    assert 0 < measured["loss"] < 100 and measured["top5_error_percent"] <= measured["error_percent"]


def test_crops_differ_and_a_small_resize_is_refused(run: Path, data_root: Path):
    data = f"folder:{data_root / 'imagenet-sample'}"
    losses = {
        (size, resize): evaluate_run(run, data=data, device="cpu", image_size=size, resize=resize)["loss"]
        for size, resize in ((64, None), (64, 73), (64, 64), (96, 96))
    }
    assert losses[64, None] == losses[64, 73]
    assert len(set(losses.values())) == 3
    with pytest.raises(UsageError, match="resize 90: must be at least image_size; nearest 96"):
        evaluate_run(run, data=data, device="cpu", image_size=96, resize=90)
