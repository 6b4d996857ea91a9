"""A finished run as others use it: its network loaded, and evaluated on any data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from verydeep.config import RunConfig
from verydeep.data import Data, load_data
from verydeep.data.transform import default_resize
from verydeep.errors import UsageError, resolve
from verydeep.models.catalogue import build_network, spec_from_dict
from verydeep.models.load import load_model
from verydeep.training.distributed import choose_device
from verydeep.training.evaluate import evaluate
from verydeep.training.rundir import BEST_WEIGHTS, CONFIG, RECALIBRATED_WEIGHTS, WEIGHTS, read_config
from verydeep.weights import ModelCard, load_weights, num_tensors, read_card

FILES = {"last": WEIGHTS, "best": BEST_WEIGHTS, "recalibrated": RECALIBRATED_WEIGHTS}


@dataclass(frozen=True)
class SavedRun:
    """A trained network with its card and the config of its run."""

    model: nn.Module
    card: ModelCard
    config: RunConfig

    def load_data(self, name: str | None = None, **options: Any) -> Data:
        """Data as the network saw its own: its size, normalisation, channels and classes.

        Args:    name: of a data set; default: the run's own
                 options: of `data.load_data`, in place of the run's
        Raises:  UsageError: if the data are not there, or have a class that the network does not know.
        """
        card, config = self.card, self.config
        own: dict[str, Any] = {
            "image_size": card.image_size,
            "mean": card.mean,
            "std": card.std,
            "channels": card.channels,
        }
        own |= {"resident": card.resident, "bad_images": config.bad_images, "workers": config.workers}
        return load_data(name or config.data, root=config.data_root, **own | options).with_classes(card.classes)


def weights_file(path: str | Path, weights: str = "last") -> Path:
    """The file of a run that holds its last weights, those that the validation images chose, or recalibrated ones.

    Args:    weights: last, best or recalibrated
    Raises:  UsageError: if it is not there, saying why.
    """
    directory = Path(path)
    name = resolve("weights", weights, FILES)
    if (directory / name).exists():
        return directory / name
    if (directory / WEIGHTS).exists():
        ways = {
            BEST_WEIGHTS: "a run with --validation chooses them",
            RECALIBRATED_WEIGHTS: f"verydeep recalibrate {directory} makes them",
        }
        raise UsageError(f"weights {weights} of {directory}: there are none; {ways[name]}")
    hint = f"; finish it with verydeep train --resume {directory}" if (directory / CONFIG).exists() else ""
    raise UsageError(f"run {directory}: no {WEIGHTS} there{hint}")


def load_run(path: str | Path, *, device: str = "auto", model: str | None = None, weights: str = "last") -> SavedRun:
    """The trained network of a run directory, in eval mode.

    Args:    weights: see `weights_file`
             model: FILE.py:FUNCTION, if the network is the user's own; a run directory never names code to run
    Raises:  UsageError: if there is no finished run, or its weights are of another network.
    """
    directory, file = Path(path), weights_file(path, weights)
    card = read_card(file)
    network = _build(card, file, directory, model)
    load_weights(file, network)
    return SavedRun(network.to(choose_device(device)).eval(), card, read_config(directory))


def load_network(path: str | Path) -> tuple[nn.Module, ModelCard]:
    """The network in a safetensors that verydeep wrote, or in the folder of one, in eval mode; and its card.

    Raises:  UsageError: if there is none, or it is the user's own code, which a file never names.
    """
    file = Path(path) if Path(path).is_file() else weights_file(path)
    card = read_card(file)
    network = _build(card, file, Path(path), None)
    load_weights(file, network)
    return network.eval(), card


def _build(card: ModelCard, file: Path, directory: Path, model: str | None) -> nn.Module:
    if model is not None:
        size = card.image_size
        return load_model(model, num_classes=len(card.classes), in_channels=card.channels, image_size=size, options={})
    if card.spec is not None:
        spec = spec_from_dict(card.spec)
        if (spec.num_classes, spec.in_channels) != (len(card.classes), card.channels):
            raise UsageError(f"weights {file}: their network has other classes or channels than their metadata names")
        if spec.depth > num_tensors(file):  # before it is built, which may take long
            raise UsageError(
                f"weights {file}: hold fewer tensors than their network, of depth {spec.depth}, has layers"
            )
        return build_network(spec)
    own = card.model if ".py:" in card.model else "FILE.py:FUNCTION"
    raise UsageError(f"run {directory}: its network is the user's own code ({card.model}); give --model {own}")


def evaluate_run(
    path: str | Path,
    *,
    data: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    image_size: int | None = None,
    resize: int | None = None,
    model: str | None = None,
    weights: str = "last",
) -> dict[str, Any]:
    """Error and loss of a run's network on the test images of its own data set, or of another by class name.

    Args:    image_size: side of what the network sees, pixels; default: that of its training
             resize: shorter side of an image file before the central crop, pixels; default: 256 for an image_size of
                 224, in proportion
    Raises:  UsageError: if the data have no test images, or a class that the network does not know.
    Source:  He et al. 2016, Table 5: image_size and resize 320 for networks trained at 224
    """
    run = load_run(path, device=device, model=model, weights=weights)
    config = run.config
    loaded = run.load_data(
        data,
        image_size=image_size or run.card.image_size,
        resize=resize,
        max_images=config.max_images if data is None else None,
        train_needed=False,
    )
    if loaded.test is None:
        raise UsageError(f"data {data or config.data}: no test images")
    evaluation = evaluate(run.model, loaded.test, batch_size=batch_size or 256, precision=config.precision)
    size = loaded.image_size
    return {
        "run": str(path),
        "data": data or config.data,
        "model": run.card.model,
        "image_size": size,
        "resize": None if loaded.resident else resize or default_resize(size),
    } | evaluation.to_dict()
