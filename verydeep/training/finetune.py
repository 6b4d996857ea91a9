"""The weights that a run starts from, where it is not from freshly drawn ones: `start_from`. `Run` calls it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from verydeep.errors import UsageError
from verydeep.models.catalogue import spec_from_dict, spec_to_dict
from verydeep.models.foreign import translate, without_wrappers
from verydeep.training.checkpoint import read_tensors
from verydeep.training.rundir import WEIGHTS
from verydeep.weights import METADATA, check_state, is_of_catalogue, read_card

# fields of a spec that change neither what the weights are for nor what they compute
_FREE = ("num_classes", "stochastic_depth", "gate_bias")


def start_from(model: nn.Module, path: str | Path) -> str:
    """Fill a model with the weights of a file; its head stays as it was drawn where the file has other classes.

    Args:    path: a run directory, or the folder or the safetensors that verydeep wrote; a state dict of torchvision or
                 timm as safetensors, or as torch.save wrote it. Nothing in it is executed.
    Returns: what was done, in one line
    Raises:  UsageError: if the file cannot be read, or its weights are of another network, naming the first difference.
    """
    file = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
    where = f"finetune {path}"
    if not file.is_file():
        raise UsageError(f"{where}: no {file.name} there" if file != Path(path) else f"{where}: no such file")
    spec, tensors = _weights_of(file, model, where)
    own = spec_to_dict(model.spec) if is_of_catalogue(model) else None  # type: ignore[arg-type]
    if spec is not None and own is not None:
        _check_spec(spec, own, where)
    state = model.state_dict()
    replaced = _heads(tensors, state) if spec and own and spec["num_classes"] != own["num_classes"] else []
    check_state(model, tensors | {name: state[name] for name in replaced}, source=where)
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in replaced}, strict=False)
    if not replaced or spec is None or own is None:
        return f"{where}: all weights taken"
    return f"{where}: weights taken; the head replaced, {spec['num_classes']} classes there, {own['num_classes']} here"


def _weights_of(file: Path, model: nn.Module, where: str) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The declaration of the network in a file, where it is known, and its tensors under our names."""
    if file.suffix == ".safetensors":
        tensors, is_ours = _read_safetensors(file, where)
        if is_ours:
            spec = read_card(file).spec
            return None if spec is None else spec_to_dict(spec_from_dict(spec)), tensors
    else:
        tensors = _read_pickle(file, where)
    try:
        if not is_of_catalogue(model):
            return None, without_wrappers(tensors)
        foreign, tensors = translate(tensors)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return spec_to_dict(foreign), tensors


def _read_safetensors(file: Path, where: str) -> tuple[dict[str, Tensor], bool]:
    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
            return tensors, METADATA in (opened.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{where}: cannot be read as safetensors ({error})") from None


def _read_pickle(file: Path, where: str) -> dict[str, Tensor]:
    """The state dict in a file of torch.save, or in the `state_dict` or `model` of the dict there."""
    try:
        values = read_tensors(file)
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if isinstance(values, Mapping) and {"spec", "identity", "progress"} <= values.keys():
        raise UsageError(f"{where}: is a checkpoint of a run; give the run's directory, which it has when finished")
    for name in ("state_dict", "model"):
        if isinstance(values, Mapping) and isinstance(values.get(name), Mapping):
            values = values[name]
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise UsageError(f"{where}: holds {type(values).__name__}; a state dict is wanted")
    return dict(values)


def _check_spec(spec: Mapping[str, Any], own: Mapping[str, Any], where: str) -> None:
    """Refuse the weights of another network than the model is.

    Raises:  UsageError: naming the first option that differs, and what the file has.
    """
    for name, value in own.items():
        theirs = spec.get(name)
        same_scale = name == "scale" and {value, theirs} <= {"none", "zero_init"}  # only how weights are drawn
        if theirs != value and name not in _FREE and not same_scale:
            raise UsageError(f"{name} {value} with {where}: its network has {name} {theirs}; nearest {theirs}")


def _heads(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """The tensors that have one row a class."""
    return [
        name
        for name, tensor in state.items()
        if name in tensors and tensors[name].shape != tensor.shape and tensors[name].shape[1:] == tensor.shape[1:]
    ]
