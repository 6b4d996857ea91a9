"""Where the sweep works: a folder of its own for each test, with a finished run in it and an image."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from verydeep.config import RunConfig
from verydeep.training.loop import train


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest run that is one: two steps on 64 digits."""
    path = tmp_path_factory.mktemp("finished") / "run"
    options = dict(model="preact_resnet8_cifar", width=4, max_images=64, batch_size=32, validation=8)
    train(RunConfig(**options, steps=2, out=str(path)))
    return path


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: `run`, finished; `stopped`, a run to resume; `image.png`; `old.json`; `folder`."""
    for name in ("run", "stopped"):
        shutil.copytree(finished, tmp_path / name)
    for name in ("result.json", "model.safetensors", "best.safetensors"):
        (tmp_path / "stopped" / name).unlink()
    Image.new("L", (8, 8), 7).save(tmp_path / "image.png")
    (tmp_path / "old.json").write_text("{}\n")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path
