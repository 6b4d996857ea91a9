"""A network's weights as safetensors, with all that must be known to call them in the file's metadata."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from verydeep.data import Data
from verydeep.data.load import MOST_PIXELS
from verydeep.errors import UsageError
from verydeep.files import parse_json, write_whole
from verydeep.models.catalogue import NETWORKS, spec_to_dict
from verydeep.models.check import fault_of
from verydeep.versions import versions

METADATA = "verydeep"


@dataclass(frozen=True)
class ModelCard:
    """What must be known to call a network's weights.

    Args:    model: its name, or FILE.py:FUNCTION, or `module:CLASS` of a module that was given to `train`
             spec: its declaration, see `spec_to_dict`; None if it is not of the catalogue
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
            spec=spec_to_dict(model.spec) if is_of_catalogue(model) else None,  # type: ignore[arg-type]
            classes=data.classes,
            image_size=data.image_size,
            channels=data.channels,
            mean=data.mean,
            std=data.std,
            resident=data.resident,
        )


def is_of_catalogue(model: nn.Module) -> bool:
    """Whether a model is one that its declaration alone makes again."""
    return type(model) in [network for _, network in NETWORKS.values()]


def save_weights(path: Path, model: nn.Module, card: ModelCard) -> None:
    """Write weights and buffers as safetensors, the card and the versions in its metadata.

    Raises:  RunError: if the file cannot be written; none is left half written.
    """
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}
    # one entry: of several, the order in the file is random, and equal runs would write different bytes
    metadata = {METADATA: json.dumps(dataclasses.asdict(card) | {"versions": versions()})}
    write_whole(path, save(tensors, metadata=metadata))


def read_card(path: Path) -> ModelCard:
    """The card in a safetensors file.

    Raises:  UsageError: if the file is not there, not safetensors, or not as verydeep writes it.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        values = parse_json(metadata[METADATA])
        values = {field.name: values[field.name] for field in dataclasses.fields(ModelCard)}
    except (OSError, SafetensorError) as error:
        raise UsageError(f"weights {path}: cannot be read as safetensors ({error})") from None
    except (KeyError, ValueError, TypeError):
        raise UsageError(f"weights {path}: hold no verydeep metadata; they were written by another program") from None
    fields: dict[str, Any] = {k: tuple(value) if isinstance(value, list) else value for k, value in values.items()}
    card = ModelCard(**fields)
    _check_card(card, path)
    return card


def _check_card(card: ModelCard, path: Path) -> None:
    """Refuse a card by which no network can be called."""
    rules = {
        "model": isinstance(card.model, str),
        "spec": card.spec is None or isinstance(card.spec, dict),
        "classes": isinstance(card.classes, tuple) and all(isinstance(name, str) for name in card.classes),
        "image_size": _is_count(card.image_size),
        "channels": _is_count(card.channels),
        "mean": _are_numbers(card.mean, card.channels),
        "std": _are_numbers(card.std, card.channels, above=0.0),
        "resident": isinstance(card.resident, bool),
    }
    for name, holds in rules.items():
        if not holds:
            raise UsageError(
                f"weights {path}: {name} {getattr(card, name)!r} in its metadata is not what verydeep writes"
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 1 <= value <= MOST_PIXELS


def _are_numbers(values: Any, count: int, *, above: float = -math.inf) -> bool:
    is_tuple = isinstance(values, tuple) and len(values) == count
    return is_tuple and all(isinstance(value, (int, float)) and above < value < math.inf for value in values)


def num_tensors(path: Path) -> int:
    """How many tensors a safetensors file has; none of them is read."""
    with safe_open(path, framework="pt") as file:
        return len(file.keys())


def load_weights(path: Path, model: nn.Module) -> None:
    """Fill a model with the weights of a file.

    Raises:  UsageError: if names or shapes differ, naming the first.
    """
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    check_state(model, tensors, source=str(path))
    model.load_state_dict(tensors)


def check_state(model: nn.Module, tensors: Mapping[str, torch.Tensor], *, source: str) -> None:
    """Refuse tensors that are not exactly the model's, by name, shape and kind of number; and parameters of NaN or inf.

    Raises:  UsageError: naming the first that is missing, superfluous, of another shape or kind, or not finite.
    """
    expected = model.state_dict()
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name in [*expected, *tensors]:
        if name not in tensors:
            raise UsageError(f"{source}: holds another model; {name} is missing")
        if name not in expected:
            raise UsageError(f"{source}: holds another model; the network has no {name}")
        fault = fault_of(tensors[name], expected[name], is_parameter=name in parameters)
        if fault is not None:
            raise UsageError(f"{source}: {name} {fault}")
        if tensors[name].shape != expected[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, the network has {tuple(expected[name].shape)}"
            raise UsageError(f"{source}: holds another model; {name} is {shapes}")
    first: dict[int, str] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        tied = first.setdefault(id(tensor), name)
        if tied != name and not torch.equal(tensors[name], tensors[tied]):
            raise UsageError(f"{source}: {tied} and {name} differ, in the network they are one")
