"""Small runs on digits that take a second or two: an 8-layer network of width 16 on 8x8 images."""

from pathlib import Path

import pytest

from verydeep.config import RunConfig
from verydeep.data import Data, load_data


@pytest.fixture(scope="session")
def digits() -> Data:
    return load_data("digits")


@pytest.fixture
def small(tmp_path: Path):
    """A function from changes to the config of a small run below the test's own folder."""

    def config(name: str = "run", **changes) -> RunConfig:
        values = dict(model="preact_resnet8_cifar", steps=12, batch_size=32, log_steps=4, out=str(tmp_path / name))
        return RunConfig(**(values | changes))

    return config
