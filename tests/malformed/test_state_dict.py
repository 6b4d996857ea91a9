"""Malformed state dicts: for `--finetune`, as torch.save and as safetensors, and for `import_weights`."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from tests.malformed.refusal import outcome, refused, refused_or_taken
from tests.malformed.test_run_files import Harm
from verydeep import create_model, export_weights, import_weights
from verydeep.errors import UsageError

TRAIN = [
    "train", "--model", "resnet18", "--width", "4", "--steps", "1",
    "--batch-size", "4", "--max-images", "8", "--image-size", "32", "--out", "new",
]  # fmt: skip
CONV, HEAD, STEM, VAR = "layer1.0.conv1.weight", "fc.weight", "conv1.weight", "layer1.0.bn1.running_var"
State = dict[str, Any]


@pytest.fixture(scope="module")
def state() -> State:
    """The state dict of a ResNet-18 under torchvision's names, 4 channels wide."""
    torch.manual_seed(0)
    return export_weights(create_model("resnet18", width=4, in_channels=1, num_classes=10))


def put(name: str, change: Callable[[Tensor], Any]) -> Callable[[State], State]:
    return lambda state: state | {name: change(state[name])}


def renamed(change: Callable[[str], str]) -> Callable[[State], State]:
    return lambda state: {change(name): tensor for name, tensor in state.items()}


def half_prefixed(state: State) -> State:
    return {f"module.{name}" if place % 2 else name: tensor for place, (name, tensor) in enumerate(state.items())}


def without(*names: str) -> Callable[[State], State]:
    return lambda state: {name: tensor for name, tensor in state.items() if name not in names}


# what has the form of a state dict
DICTS: dict[str, Callable[[State], State]] = {
    "a tensor missing": without(CONV),
    "the stem missing": without(STEM),
    "the head missing": without(HEAD),
    "a statistic missing": without(VAR),
    "a unit missing": lambda state: {name: tensor for name, tensor in state.items() if "layer1.1" not in name},
    "a stage missing": lambda state: {name: tensor for name, tensor in state.items() if "layer2" not in name},
    "all missing": lambda state: {},
    "a tensor too many": lambda state: state | {"extra": torch.zeros(1)},
    "a unit of another kind": lambda state: state | {"layer1.0.conv3.weight": torch.zeros(4, 4, 1, 1)},
    "attention": lambda state: state | {"layer1.0.se.fc.weight": torch.zeros(1)},
    "a unit of a billion": lambda state: state | {"layer1.999999999.conv1.weight": torch.zeros(1)},
    "a stage of a billion": lambda state: state | {"layer999999999.0.conv1.weight": torch.zeros(1)},
    "a stage of 0": lambda state: state | {"layer0.0.conv1.weight": torch.zeros(1)},
    "a negative unit": lambda state: state | {"layer1.-1.conv1.weight": torch.zeros(1)},
    "a unit of letters": lambda state: state | {"layer1.x.conv1.weight": torch.zeros(1)},
    "half with a prefix": half_prefixed,
    "half with another": lambda state: {
        f"{('module.', '_orig_mod.')[place % 2]}{name}": tensor for place, (name, tensor) in enumerate(state.items())
    },
    "an unknown prefix": renamed(lambda name: f"model.{name}"),
    "a prefix twice and other names": renamed(lambda name: f"module.module.net.{name}"),
    "upper case": renamed(str.upper),
    "the names of timm's resnetv2": renamed(lambda name: name.replace("layer", "stages.")),
    "empty names": lambda state: {"": torch.zeros(1)},
    "names of dots": lambda state: {".": torch.zeros(1), "module.": torch.zeros(1)},
    "names of another network": lambda state: {"features.0.weight": torch.zeros(3, 3)},
    "transposed": put(CONV, lambda tensor: tensor.transpose(0, 3).contiguous()),
    "a transposed head": put(HEAD, lambda tensor: tensor.T.contiguous()),
    "a head of one dimension": put(HEAD, lambda tensor: tensor[0].contiguous()),
    "a head without classes": put(HEAD, lambda tensor: tensor[:0]),
    "a head that is a number": put(HEAD, lambda tensor: torch.tensor(1.0)),
    "a bias of other classes": put("fc.bias", lambda tensor: tensor[1:].contiguous()),
    "a stem that is a number": put(STEM, lambda tensor: torch.tensor(1.0)),
    "a stem of two dimensions": put(STEM, lambda tensor: tensor.flatten(1)),
    "a stem without channels": put(STEM, lambda tensor: tensor[:, :0]),
    "a stem without outputs": put(STEM, lambda tensor: tensor[:0]),
    "a stem of 3x3": put(STEM, lambda tensor: tensor[..., :3, :3].contiguous()),
    "a stem of three channels": put(STEM, lambda tensor: tensor.repeat(1, 3, 1, 1)),
    "a wide stem": put(STEM, lambda tensor: tensor.repeat(2, 1, 1, 1)),
    "no elements": put(CONV, lambda tensor: tensor[:0]),
    "a number": put(CONV, lambda tensor: torch.tensor(1.0)),
    "a dimension less": put(CONV, lambda tensor: tensor[0].contiguous()),
    "NaN": put(CONV, lambda tensor: tensor * float("nan")),
    "inf": put(HEAD, lambda tensor: tensor / 0),
    "beyond 32 bits": put(CONV, lambda tensor: tensor.double() * 1e300),
    "whole numbers": put(CONV, lambda tensor: tensor.long()),
    "booleans": put(CONV, lambda tensor: tensor > 0),
    "complex": put(CONV, lambda tensor: tensor.to(torch.complex64)),
    "a counter that is a fraction": put("bn1.num_batches_tracked", lambda tensor: torch.tensor(1.5)),
    "a variance of NaN": put(VAR, lambda tensor: tensor * float("nan")),
}

# what only torch.save can write
PICKLES: dict[str, Callable[[State], Any]] = {
    "text": lambda state: "weights",
    "a number": lambda state: 3,
    "nothing": lambda state: None,
    "a tensor": lambda state: torch.zeros(3),
    "a list": lambda state: list(state.values()),
    "numbers as names": lambda state: dict(enumerate(state.values())),
    "a list as value": put(CONV, lambda tensor: tensor.flatten().tolist()[:3]),
    "text as value": put(CONV, lambda tensor: "x"),
    "None as value": put(CONV, lambda tensor: None),
    "sparse": put(CONV, lambda tensor: tensor.to_sparse()),
    "on the meta device": put(CONV, lambda tensor: tensor.to("meta")),
    "an empty state_dict": lambda state: {"state_dict": {}},
    "a state_dict in a state_dict": lambda state: {"state_dict": {"state_dict": state}},
    "a state_dict that is a list": lambda state: {"state_dict": [1]},
    "a whole module": lambda state: torch.nn.Linear(2, 2),
    "what runs": lambda state: {"state_dict": Harm()},
    "what runs, as a name": lambda state: {Harm(): torch.zeros(1)},
}

FILES: dict[str, bytes] = {
    "empty": b"",
    "text": b"weights",
    "zeros": bytes(1000),
    "half a zip": b"PK\x03\x04" + bytes(100),
    "gzip": b"\x1f\x8b" + bytes(50),
    "a tar": b"a" * 257 + b"ustar" + bytes(300),
    "safetensors under a wrong name": (2).to_bytes(8, "little") + b"{}",
    "a pickle that runs": b"cos\nmkdir\n(S'executed'\ntR.",
    "a pickle that runs, of protocol 2": pickle.dumps(Harm(), 2),
    "a pickle that runs, of protocol 5": pickle.dumps(Harm(), 5),
    "a pickle of numbers": pickle.dumps({"a": 1}, 2),
    "a pickle without an end": b"\x80\x02]",
    "a pickle of an empty stack": b"\x80\x02000.",
    "a pickle of a memo that is not there": b"\x80\x02h\xff.",
    "a pickle of a huge number": b"\x80\x02\x8b\xff\xff\xff\x7f",
    "a pickle nested deep": b"\x80\x02" + b"]" * 100_000 + b".",
    "the head of the old format": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.",
}


def finetune_refused(file: str, code: int = 2) -> None:
    refused([*TRAIN, "--finetune", file], f"finetune {file}", code=code)
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", DICTS)
def test_a_state_dict_of_another_network_is_refused(place, state, name):
    changed = DICTS[name](state)
    torch.save(changed, "w.pth")
    finetune_refused("w.pth")
    save_file({key: tensor.contiguous() for key, tensor in changed.items()}, "w.safetensors")
    finetune_refused("w.safetensors")


# Alone they are whole networks, only not the one that the run trains.
LEGAL_ALONE = {"a stem of three channels", "a unit missing"}
IMPORTED = [name for name in DICTS if name not in LEGAL_ALONE]


@pytest.mark.parametrize("name", IMPORTED)
def test_import_weights_refuses_it_in_one_line(state, name):
    with pytest.raises(UsageError) as caught:
        import_weights(DICTS[name](state))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PICKLES)
def test_what_is_no_state_dict_is_refused(place, state, name):
    torch.save(PICKLES[name](state), "w.pth")
    finetune_refused("w.pth")


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_of_weights_is_refused(place, name):
    Path("w.pth").write_bytes(FILES[name])
    finetune_refused("w.pth")
    Path("w.safetensors").write_bytes(FILES[name])
    finetune_refused("w.safetensors")


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_floating_point_of_any_width_is_taken(place, state, kind):
    torch.save({k: v.to(kind) if v.is_floating_point() else v for k, v in state.items()}, "w.pth")
    assert outcome([*TRAIN, "--finetune", "w.pth"]) == (0, "")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_bytes_are_taken_or_refused(place, state, draw):
    torch.save(state, "w.pth")
    content = bytearray(Path("w.pth").read_bytes())
    for _ in range(draw.draw(st.integers(1, 6))):
        where = draw.draw(st.integers(0, len(content) - 1) | st.integers(0, 200))
        content[where] = draw.draw(st.integers(0, 255))
    Path("w.pth").write_bytes(content[: draw.draw(st.integers(1, len(content)) | st.just(len(content)))])
    refused_or_taken([*TRAIN, "--finetune", "w.pth", "--freeze", "nosuch"])  # refused at the latest by this


INPUTS = [
    *(("state dict", name) for name in DICTS),
    *(("pickle", name) for name in PICKLES),
    *(("safetensors", name) for name in DICTS),
    *(("weights file", name) for name in FILES),
]
