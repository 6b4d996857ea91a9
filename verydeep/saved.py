"""A finished run as others use it: weights in safetensors with all that is needed to call them, and back again."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from verydeep.config import RunConfig
from verydeep.data import Data, load_data
from verydeep.errors import RunError, UsageError
from verydeep.models.load import load_model
from verydeep.models.resnet import ResNet
from verydeep.models.spec import ResNetSpec
from verydeep.training.distributed import choose_device
from verydeep.training.evaluate import evaluate
from verydeep.training.result import versions
from verydeep.training.rundir import WEIGHTS, read_config

METADATA = "verydeep"


@dataclass(frozen=True)
class ModelCard:
    """What must be known to call a network's weights.

    Args:    model: its name, or FILE.py:FUNCTION, or `module:CLASS` of a module that was given
             spec: fields of its ResNetSpec; None if it is not a ResNet
             classes: names of the outputs
             image_size, channels: of the images it was trained on
             mean, std: of the channels, pixels in 0..1
             resident: whether images were squeezed to the size (small data sets), not cropped to it (folders)
    """

    model: str
    spec: dict[str, Any] | None
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resident: bool

    @classmethod
    def of(cls, model: nn.Module, name: str, data: Data) -> "ModelCard":
        return cls(
            model=name,
            spec=model.spec.to_dict() if isinstance(model, ResNet) else None,
            classes=data.classes,
            image_size=data.image_size,
            channels=data.channels,
            mean=data.mean,
            std=data.std,
            resident=data.resident,
        )


@dataclass(frozen=True)
class SavedRun:
    """A trained network with its card and the config of its run."""

    model: nn.Module
    card: ModelCard
    config: RunConfig


def save_weights(path: Path, model: nn.Module, card: ModelCard) -> None:
    """Write weights and buffers as safetensors, the card and the versions in its metadata.

    Raises:  RunError: if the file cannot be written; none is left half written.
    """
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {"format": "pt", METADATA: json.dumps(dataclasses.asdict(card) | {"versions": versions()})}
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(save(tensors, metadata=metadata))
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written ({error})") from None


def read_card(path: Path) -> ModelCard:
    """The card in a safetensors file.

    Raises:  UsageError: if the file is not there, not safetensors, or not written by verydeep.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        values = json.loads(metadata[METADATA])
        values = {field.name: values[field.name] for field in dataclasses.fields(ModelCard)}
    except (OSError, SafetensorError) as error:
        raise UsageError(f"weights {path}: cannot be read as safetensors ({error})") from None
    except (KeyError, ValueError, TypeError):
        raise UsageError(f"weights {path}: hold no verydeep metadata; they were written by another program") from None
    fields: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
    return ModelCard(**fields)


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill a model with the weights of a file.

    Raises:  UsageError: if names or shapes differ, naming the first.
    """
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    check_state(model, tensors, source=str(path))
    model.load_state_dict(tensors)


def check_state(model: nn.Module, tensors: dict[str, torch.Tensor], *, source: str) -> None:
    """Refuse tensors that are not exactly the model's, by name and shape.

    Raises:  UsageError: naming the first that is missing, superfluous or of another shape.
    """
    expected = model.state_dict()
    for name in [*expected, *tensors]:
        if name not in tensors:
            raise UsageError(f"{source}: holds another model; {name} is missing")
        if name not in expected:
            raise UsageError(f"{source}: holds another model; the network has no {name}")
        if tensors[name].shape != expected[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, the network has {tuple(expected[name].shape)}"
            raise UsageError(f"{source}: holds another model; {name} is {shapes}")


def load_run(path: str | Path, *, device: str = "auto", model: str | None = None) -> SavedRun:
    """The trained network of a run directory, in eval mode.

    Args:    model: FILE.py:FUNCTION, if the network is the user's own; a run directory never names code to run
    Raises:  UsageError: if there is no finished run, or its weights are of another network.
    """
    directory = Path(path)
    weights = directory / WEIGHTS
    if not weights.exists():
        hint = f"; finish it with verydeep train --resume {directory}" if (directory / "config.yaml").exists() else ""
        raise UsageError(f"run {directory}: no {WEIGHTS} there{hint}")
    card = read_card(weights)
    network = _build(card, directory, model)
    load_weights(weights, network)
    return SavedRun(network.to(choose_device(device)).eval(), card, read_config(directory))


def _build(card: ModelCard, directory: Path, model: str | None) -> nn.Module:
    if card.spec is not None and model is None:
        return ResNet(ResNetSpec(**card.spec))
    if model is None:
        raise UsageError(f"run {directory}: its network is the user's own code; give --model {card.model} again")
    return load_model(model, num_classes=len(card.classes), in_channels=card.channels, options={})


def evaluate_run(
    path: str | Path,
    *,
    data: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    image_size: int | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """Error and loss of a run's network on the test images of its own data set, or of another by class name.

    Raises:  UsageError: if the data have no test images, or a class that the network does not know.
    """
    run = load_run(path, device=device, model=model)
    config = run.config
    loaded = load_data(
        data or config.data,
        image_size=image_size or run.card.image_size,
        mean=run.card.mean,
        std=run.card.std,
        bad_images=config.bad_images,
        workers=config.workers,
        train_needed=False,
        channels=run.card.channels,
    ).with_classes(run.card.classes)
    if loaded.test is None:
        raise UsageError(f"data {data or config.data}: no test images")
    evaluation = evaluate(run.model, loaded.test, batch_size=batch_size or 256, precision=config.precision)
    return {"run": str(path), "data": data or config.data, "model": run.card.model} | evaluation.to_dict()
