"""What all tests share: a repeatable hypothesis, the data sets beside the repository, stubs for the verbs' work."""

import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]

# Tests run side by side, one a core: a second thread each would only wait. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The data sets beside the repository; tests that use it carry the marker `data`."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs the data sets in ../shared/data, which is absent")
    return path


class Result:
    """What `train` returns, as far as the command line looks at it."""

    def to_dict(self) -> dict[str, Any]:
        return {"directory": Path("runs/x"), "train_loss": float("nan"), "steps": 3}

    def summary(self) -> str:
        return "trained"


class Curve:
    """What `find_lr` returns, as far as the command line looks at it."""

    suggested_lr = 0.1

    def to_dict(self) -> dict[str, Any]:
        return {"suggested_lr": 0.1}

    def to_html(self, path: str) -> None:
        Path(path).write_text("page")

    def summary(self) -> str:
        return "suggested lr 0.1"


class Reproduction:
    """What `reproduce` returns, as far as the command line looks at it."""

    path = Path("reproduced/chapter/chapter.json")
    values: ClassVar[dict[str, Any]] = {"cells": [{"id": "a", "published": 1, "measured": [1.5], "median": 1.5, "n": 1,
                                                    "verdict": "holds"}]}  # fmt: skip

    def counts(self) -> dict[str, int]:
        return {"holds": 1, "fails": 0, "not run": 0}


class Diagnosed:
    """What `diagnose_named` returns, as far as the command line looks at it."""

    findings: ClassVar[list[Any]] = [types.SimpleNamespace(rule="no-shortcut", site="stem", severity="warning")]

    def to_dict(self) -> dict[str, Any]:
        return {"findings": [{"rule": "no-shortcut"}], "facts": {"loss": float("nan")}}

    def to_html(self, path: str) -> None:
        Path(path).write_text("page")


class Work:
    """Stand-ins for what the verbs call: `calls` records it, `replace` puts another function in a place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []
        self._modules: dict[str, types.ModuleType] = {}
        self._monkeypatch = monkeypatch

    def replace(self, module: str, name: str, function: Callable[..., Any]) -> None:
        def recorded(*args: Any, **options: Any) -> Any:
            self.calls.append((name, args, options))
            return function(*args, **options)

        if module not in self._modules:
            self._modules[module] = types.ModuleType(module)
            self._monkeypatch.setitem(sys.modules, module, self._modules[module])
        setattr(self._modules[module], name, recorded)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    stubs = Work(monkeypatch)
    prediction = types.SimpleNamespace(path="a.png", classes=[("cat", 0.75), ("dog", 0.25)], error=None)
    stubs.replace("verydeep.training.loop", "train", lambda config: Result())
    stubs.replace("verydeep.training.loop", "resume", lambda directory, changes: Result())
    stubs.replace("verydeep.training.find_lr", "find_lr", lambda config, **options: Curve())
    stubs.replace("verydeep.saved", "evaluate_run", lambda run, **options: {"error_percent": 6.25, "num_images": 10000})
    stubs.replace("verydeep.predict", "predict", lambda run, paths, **options: [prediction])
    stubs.replace("verydeep.export", "export_run", lambda run, *, out, **options: {"out": out, "bytes": 12345})
    stubs.replace("verydeep.recalibrate", "recalibrate_run", lambda run, **options: {"test_error_percent": 6.25})
    stubs.replace("verydeep.experiments.page", "write_page", lambda directories, out: None)
    stubs.replace("verydeep.experiments.engine", "engine_by_name", lambda *options: "engine")
    stubs.replace("verydeep.experiments.reproduce", "reproduce", lambda name, **options: Reproduction())
    stubs.replace("verydeep.analysis.named", "diagnose_named", lambda model, **options: Diagnosed())
    stubs.replace("verydeep.bench", "bench", lambda config, **options: Result())
    stubs.replace("verydeep.models.catalogue", "list_models", lambda pattern: ["resnet20_cifar"])
    stubs.replace("verydeep.models.catalogue", "describe", lambda name: {"name": name, "depth": 20})
    return stubs
