"""A training as a trial: an ordinary run in a directory of its own, and what is measured of it.

Tables share trainings: one that two experiments name is run once.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from verydeep.analysis.batch_norm import images_of, recalibrated
from verydeep.analysis.propagation import propagation
from verydeep.config import RunConfig
from verydeep.data import Data, epoch_order
from verydeep.errors import Diverged, UsageError
from verydeep.experiments.data import data_key, data_of, has_data, loaded_data
from verydeep.experiments.experiment import Measurement
from verydeep.memory.count import activation_bytes, parameter_bytes
from verydeep.models.load import load_model
from verydeep.saved import evaluate_run, load_run
from verydeep.size import parse_size
from verydeep.training.evaluate import evaluate
from verydeep.training.loop import resume, train
from verydeep.training.observer import Observer
from verydeep.training.progress import FREE_TO_CHANGE
from verydeep.training.reporter import SilentReporter
from verydeep.training.rundir import CONFIG, read_config, read_metrics, read_result

FRACTIONS = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 1.0)  # of a run, at which signals are read; most changes early
NO_IDENTITY = {*FREE_TO_CHANGE, "seed"} - {"model"}  # fields of a run that do not tell which trial it is


@dataclass(frozen=True)
class Training:
    """A network trained with each seed.

    Args:    name: unique in its source; names the run directories
             config: the run, but for its seed and directory
             cost: expected seconds on one core, relative to other trials
             optional: whether it is left out, and not an error, where its data are absent
             crops: whether it is tested on the two crops of ImageNet too: of the training images' side S with a shorter
                 side of 256/224 S, and the whole of a shorter side of 320/224 S
             recalibration_images: training images on which batch-norm statistics are recomputed; None: all
    """

    name: str
    config: RunConfig
    cost: float = 1.0
    optional: bool = False
    crops: bool = False
    recalibration_images: int | None = None

    @property
    def data_key(self) -> RunConfig:
        """What `loaded_data` finds the data by."""
        return data_key(self.config.resolved())

    def is_possible(self) -> bool:
        """Whether it can be carried out here, as far as it is asked beforehand."""
        return not self.optional or has_data(self.data_key)

    @property
    def needed_bytes(self) -> int:
        """Memory of a training step: weights, gradients, momentum, and what is kept for the backward pass."""
        config, data = self.config.resolved(), loaded_data(self.data_key)
        shape = (data.channels, data.image_size, data.image_size)
        with torch.device("meta"):
            model = load_model(
                config.model, num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size,
                options=config.model_options(),
            )  # fmt: skip
        assert config.batch_size is not None
        kept = activation_bytes(model, shape, batch_size=config.batch_size)
        return parameter_bytes(model) + (kept if config.memory_budget is None else parse_size(config.memory_budget))

    def carry_out(self, seed: int, directory: Path) -> Measurement:
        """Train in a run directory, or go on there; then measure.

        Returns: curve [(step, training loss, training error_percent)], test_curve [(step, test error_percent)],
                 train_loss and train_error_percent over the last tenth of the steps, test_error_percent of the last
                 iterate (of chance, where the run diverged), the same with batch-norm statistics recomputed on training
                 images, observed: what `propagation` read at FRACTIONS of the run, diverged, steps, num_parameters;
                 chance_error_percent, of guessing; config: `asked`; with crops train_crop and large_crop,
                 [top-1, top-5] error_percent
        Raises:  UsageError: if another run is in the directory.
        """
        config = replace(self.config, seed=seed, out=str(directory)).resolved()
        data = data_of(config)
        about = {"config": self.asked, "chance_error_percent": _chance(data)}
        observer = Observer(lambda *read: propagation(*read).to_dict(), FRACTIONS)
        try:
            if (directory / CONFIG).exists():
                self.check(identity(read_config(directory).resolved()), directory)
                finished = resume(directory, data=data, observer=observer, reporter=SilentReporter()).finished
            else:
                finished = train(config, data=data, observer=observer, reporter=SilentReporter()).finished
        except Diverged:
            return _course(directory) | about | _at_chance(data)
        if not finished:  # a signal asked the run to stop: half a training is no measurement
            raise KeyboardInterrupt
        crops = _crops(directory, data.image_size) if self.crops else {}
        outcome = _outcome(directory) | {"recalibrated_test_error_percent": self._recalibrated_error(directory, data)}
        return _course(directory) | about | outcome | crops

    @property
    def asked(self) -> dict[str, Any]:
        """What tells this training from others: its config, but for the seed and where things lie."""
        return identity(self.config.resolved())

    def check(self, found: Mapping[str, Any], path: Path) -> None:
        """Refuse a run or a measurement that was asked for by another config.

        Args:    found: its `asked`
        Raises:  UsageError: if a field differs.
        """
        for name, value in self.asked.items():
            if found.get(name) != value:
                raise UsageError(
                    f"run {path}: {name} is {found.get(name)!r} there and {value!r} here; give another --out, or "
                    "delete it"
                )

    def _recalibrated_error(self, directory: Path, data: Data) -> float | None:
        """Test error_percent with the running statistics replaced by those of training images, not augmented."""
        if data.test is None or data.train is None:
            return None
        saved = load_run(directory)
        device = next(saved.model.parameters()).device
        indices = epoch_order(len(data.train), seed=saved.config.seed, epoch=0)[: self.recalibration_images]
        with recalibrated(saved.model, images_of(data.train, indices.split(250), device)):
            return evaluate(saved.model, data.test, precision=saved.config.precision).error_percent


def identity(config: RunConfig) -> dict[str, Any]:
    """What tells one training from another: a resolved config without what may differ.

    Of the data it has their kind and the last part of where they are.
    """
    kind, colon, place = config.data.partition(":")
    kept = {name: value for name, value in config.to_dict().items() if name not in NO_IDENTITY}
    return kept | {"data": f"{kind}{colon}{Path(place).name}"}


def _course(directory: Path) -> Measurement:
    """What the metrics of a run say."""
    lines = read_metrics(directory)
    trained = [line for line in lines if line["kind"] == "train" and line["loss"] is not None]
    chosen = [line for line in lines if line["kind"] == "validation"]
    end = [line for line in trained if line["step"] > 0.9 * trained[-1]["step"]]
    return {
        "curve": [(line["step"], line["loss"], line["error_percent"]) for line in trained],
        "test_curve": [(line["step"], line["error_percent"]) for line in lines if line["kind"] == "test"],
        "validation_error_percent": chosen[-1]["error_percent"] if chosen else None,
        "train_loss": statistics.fmean(line["loss"] for line in end) if end else None,
        "train_error_percent": statistics.fmean(line["error_percent"] for line in end) if end else None,
        "observed": [_without_kind(line) for line in lines if line["kind"] == "observed"],
    }


def _without_kind(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name != "kind"}


def _outcome(directory: Path) -> Measurement:
    result = read_result(directory)
    assert result is not None  # the run is finished
    kept = ("test_error_percent", "test_top5_error_percent", "steps", "num_parameters", "seconds", "peak_memory_bytes")
    return {name: result[name] for name in kept} | {"diverged": False}


def _crops(directory: Path, side: int) -> Measurement:
    """Error_percent of single crops, as in Table 5."""
    large = round(side * 320 / 224)
    sizes = {"train_crop": (side, None), "large_crop": (large, large)}
    tested = {name: evaluate_run(directory, image_size=size, resize=resize) for name, (size, resize) in sizes.items()}
    return {name: [one["error_percent"], one["top5_error_percent"]] for name, one in tested.items()}


def _chance(data: Data) -> float:
    """Error_percent of guessing."""
    return 100 * (1 - 1 / len(data.classes))


def _at_chance(data: Data) -> Measurement:
    """A run that diverged has no network to be tested."""
    chance = _chance(data)
    chance_of_five = 100 * (1 - min(5, len(data.classes)) / len(data.classes))
    crops = {name: [chance, chance_of_five] for name in ("train_crop", "large_crop")}
    errors = {f"{name}_error_percent": chance for name in ("test", "recalibrated_test", "train")}
    return errors | {"validation_error_percent": None, "train_loss": None, "diverged": True} | crops
