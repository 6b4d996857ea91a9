"""The verbs one after the other on real files, as a user types them."""

import json
from pathlib import Path

import pytest
from PIL import Image

from verydeep.cli import main


def test_train_evaluate_predict_export(tmp_path: Path, capsys: pytest.CaptureFixture):
    run, figures = str(tmp_path / "run"), str(tmp_path / "figures.json")
    assert main(["train", "--model", "preact_resnet8_cifar", "--steps", "30", "--out", run, "--json", figures]) == 0
    out = capsys.readouterr().out
    assert "step 30/30" in out and "test error" in out and run in out
    trained = json.loads(Path(figures).read_text())
    assert trained["finished"] and trained["steps"] == 30

    assert main(["evaluate", run, "--json", figures, "--device", "cpu"]) == 0
    assert json.loads(Path(figures).read_text())["error_percent"] == trained["test_error_percent"]

    good, bad = tmp_path / "four.png", tmp_path / "bad.png"
    Image.new("RGB", (20, 30), "white").save(good)
    bad.write_bytes(b"")
    capsys.readouterr()
    assert main(["predict", run, str(good), "--top", "2"]) == 0
    assert "four.png" in capsys.readouterr().out
    assert main(["predict", run, str(good), str(bad)]) == 1
    captured = capsys.readouterr()
    assert "four.png" in captured.out and "bad.png" in captured.err and captured.err.count("\n") == 1

    weights = tmp_path / "net.safetensors"
    assert main(["export", run, "--format", "safetensors", "--out", str(weights)]) == 0
    assert weights.stat().st_size > 100_000
    assert main(["train", "--steps", "1", "--out", run]) == 2
    assert "holds a run already" in capsys.readouterr().err


def test_reproduce_one_experiment(tmp_path: Path, capsys: pytest.CaptureFixture):
    flags = ["--only", "paths-3", "--data", "digits", "--seeds", "1", "--processes", "1"]
    assert main(["reproduce", "chapter", *flags, "--out", str(tmp_path), "--json", str(tmp_path / "made.json")]) == 0
    assert "8 holds, 0 fails, 50 not run" in capsys.readouterr().out
    made = json.loads((tmp_path / "made.json").read_text())
    assert made == json.loads((tmp_path / "chapter.json").read_text())
    assert (made["scale"], made["data"], made["image_size"]) == ("small", "digits", None)
    assert (tmp_path / "chapter.html").exists()


def test_reproduce_on_data_that_are_absent(tmp_path: Path, capsys: pytest.CaptureFixture):
    flags = ["--only", "shift", "--data", f"parquet:{tmp_path / 'none'}", "--image-size", "16"]
    assert main(["reproduce", "chapter", *flags, "--out", str(tmp_path / "out")]) == 2
    assert "none" in capsys.readouterr().err and not (tmp_path / "out").exists()
