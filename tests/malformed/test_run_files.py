"""Damaged checkpoints, weights, cards, results and metrics of a run."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save

from tests.malformed.refusal import refused, refused_or_taken
from tests.malformed.test_flags import TRAIN
from verydeep.errors import RunError
from verydeep.training.checkpoint import load_checkpoint

LAST = Path("stopped/checkpoints/last.pt")
WEIGHTS = Path("run/model.safetensors")
Values = dict[str, Any]


class Harm:
    """Executed by whoever unpickles it."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("executed",)


def saved(values: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(values, buffer)
    return buffer.getvalue()


def archive(**parts: str | bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in parts.items():
            file.writestr(name.replace("__", "/").replace("_pkl", ".pkl"), content)
    return buffer.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


# bytes of a checkpoint -> other bytes
FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "one byte": lambda data: data[:1],
    "first half": lambda data: data[: len(data) // 2],
    "second half": lambda data: data[len(data) // 2 :],
    "without its end": lambda data: data[:-1],
    "without its directory": lambda data: data[:-700],
    "a bit flipped": lambda data: flipped(data, len(data) // 2),
    "zeros": lambda data: bytes(len(data)),
    "text": lambda data: b"a checkpoint",
    "a picture": lambda data: b"\x89PNG\r\n\x1a\n" + data,
    "a pickle": lambda data: pickle.dumps({"step": 1}),
    "a pickle that runs": lambda data: pickle.dumps(Harm()),
    "torch.save of what runs": lambda data: saved({"progress": Harm()}),
    "an archive of another kind": lambda data: archive(a="b"),
    "an archive of text": lambda data: archive(archive__data_pkl="text"),
    "an archive of what runs": lambda data: archive(
        archive__data_pkl=pickle.dumps(Harm(), 2), archive__version="3\n", archive__byteorder="little"
    ),
    "a list": lambda data: saved([1]),
    "nothing": lambda data: saved(None),
    "a number": lambda data: saved(3),
    "a tensor": lambda data: saved(torch.zeros(2)),
    "an empty dict": lambda data: saved({}),
}


def with_model(change: Callable[[torch.Tensor], Any]) -> Callable[[Values], Values]:
    return lambda v: {"model": {name: change(tensor) for name, tensor in v["model"].items()}}


def with_momentum(change: Callable[[torch.Tensor], Any]) -> Callable[[Values], Values]:
    def changed(values: Values) -> Values:
        state = {
            key: {"momentum_buffer": change(one["momentum_buffer"])}
            for key, one in values["optimizer"]["state"].items()
        }
        return {"optimizer": values["optimizer"] | {"state": state}}

    return changed


# entries that take the place of the checkpoint's own; each file is whole
ENTRIES: dict[str, Callable[[Values], Values]] = {
    "weights of another shape": with_model(lambda tensor: tensor.flatten()[:1]),
    "weights transposed": with_model(lambda tensor: tensor.permute(tuple(reversed(range(tensor.ndim))))),
    "weights of NaN": with_model(lambda tensor: tensor * float("nan")),
    "whole numbers as weights": with_model(lambda tensor: tensor.long()),
    "complex weights": with_model(lambda tensor: tensor.to(torch.complex64)),
    "no tensors as weights": with_model(lambda tensor: 1),
    "a weight missing": lambda v: {"model": dict(list(v["model"].items())[1:])},
    "a weight too many": lambda v: {"model": {**v["model"], "extra": torch.zeros(1)}},
    "another network": lambda v: {"spec": v["spec"] | {"order": "original"}},
    "another seed": lambda v: {"config": v["config"] | {"seed": 9}},
    "other classes": lambda v: {"identity": v["identity"] | {"classes": ["a"]}},
    "no identity": lambda v: {"identity": {}},
    "no groups of the optimizer": lambda v: {"optimizer": v["optimizer"] | {"param_groups": []}},
    "momentum of another shape": with_momentum(lambda tensor: torch.zeros(3, 7)),
    "momentum of NaN": with_momentum(lambda tensor: tensor * float("nan")),
    "momentum that is text": with_momentum(lambda tensor: "x"),
    "a negative step": lambda v: {"progress": v["progress"] | {"step": -5}},
    "a step beyond the end": lambda v: {"progress": v["progress"] | {"step": 10**9}},
    "a step that is text": lambda v: {"progress": v["progress"] | {"step": "x"}},
    "progress of another version": lambda v: {"progress": v["progress"] | {"speed": 1}},
    "a tally of another length": lambda v: {"tally": torch.zeros(3)},
}
KEYS = ("spec", "identity", "config", "progress", "model", "optimizer", "tally")
SUBSTITUTES: dict[str, Any] = {"absent": ..., "None": None, "text": "x", "a list": [1, 2]}
KEYED = [(key, name) for key in KEYS for name in SUBSTITUTES]


def resume_refused() -> None:
    refused(["train", "--resume", "stopped"], "checkpoint", "stopped")
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_refused(place, name):
    LAST.write_bytes(FILES[name](LAST.read_bytes()))
    resume_refused()


@pytest.mark.parametrize("name", ENTRIES)
def test_a_checkpoint_of_something_else_is_refused(place, name):
    values = torch.load(LAST, weights_only=True)
    LAST.write_bytes(saved(values | ENTRIES[name](values)))
    refused(["train", "--resume", "stopped"], "stopped")


@pytest.mark.parametrize(("key", "name"), KEYED)
def test_an_entry_of_another_type_is_refused(place, key, name):
    values = torch.load(LAST, weights_only=True)
    values[key] = SUBSTITUTES[name]
    LAST.write_bytes(saved({key: value for key, value in values.items() if value is not ...}))
    resume_refused()


def test_a_folder_in_place_of_a_checkpoint_is_refused(place):
    LAST.unlink()
    LAST.mkdir()
    resume_refused()


# weights


def header_of(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


WEIGHT_FILES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "seven bytes": lambda data: data[:7],
    "its length alone": lambda data: data[:8],
    "half its header": lambda data: data[: 8 + header_of(data) // 2],
    "half": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "with a byte too many": lambda data: data + b"x",
    "a huge header": lambda data: (2**63).to_bytes(8, "little") + data[8:],
    "a header of all ones": lambda data: b"\xff" * 8 + data[8:],
    "a header of 100 MB": lambda data: (10**8).to_bytes(8, "little") + data[8:],
    "no header": lambda data: bytes(8) + data[8:],
    "a header that is no JSON": lambda data: data[:8] + b"x" * header_of(data) + data[8 + header_of(data) :],
    "a header of another encoding": lambda data: data[:8] + b"\xff" * header_of(data) + data[8 + header_of(data) :],
    "an empty header": lambda data: (2).to_bytes(8, "little") + b"{}",
    "offsets that overlap": lambda data: data.replace(b'"data_offsets":[0,', b'"data_offsets":[4,', 1),
    "a kind of number that there is not": lambda data: data.replace(b'"F32"', b'"F33"', 1),
    "a negative size": lambda data: data.replace(b'"shape":[4,', b'"shape":[-4,', 1),
    "a huge size": lambda data: data.replace(b'"shape":[4,', b'"shape":[99999999999999,', 1),
    "text": lambda data: b"weights" * 100,
    "a pickle that runs": lambda data: pickle.dumps(Harm()),
    "torch.save of what runs": lambda data: saved({"stem.conv.weight": Harm()}),
}

Tensors = dict[str, torch.Tensor]
HEAD = "head.linear.weight"
TENSORS: dict[str, Callable[[Tensors], Tensors]] = {
    "NaN": lambda t: t | {HEAD: t[HEAD] * float("nan")},
    "inf": lambda t: t | {"stem.conv.weight": t["stem.conv.weight"] / 0},
    "beyond 32 bits": lambda t: t | {HEAD: t[HEAD].double() + 1e300},
    "transposed": lambda t: t | {HEAD: t[HEAD].T.contiguous()},
    "one class less": lambda t: t | {HEAD: t[HEAD][1:].contiguous()},
    "no elements": lambda t: t | {HEAD: t[HEAD][:0]},
    "whole numbers": lambda t: t | {HEAD: t[HEAD].long()},
    "booleans": lambda t: t | {HEAD: t[HEAD] > 0},
    "one missing": lambda t: {name: tensor for name, tensor in t.items() if name != HEAD},
    "one too many": lambda t: t | {"extra": torch.zeros(1)},
    "one renamed": lambda t: {name.replace("head.", "fc."): tensor for name, tensor in t.items()},
    "prefixed": lambda t: {f"module.{name}": tensor for name, tensor in t.items()},
    "none": lambda t: {},
}


def spec(**changes: Any) -> Callable[[Values], Any]:
    return lambda card: card | {"spec": card["spec"] | changes}


CARDS: dict[str, Callable[[Values], Any]] = {
    "a list": lambda card: [1],
    "a number": lambda card: 3,
    "null": lambda card: None,
    "empty": lambda card: {},
    "without classes": lambda card: {name: value for name, value in card.items() if name != "classes"},
    "classes as text": lambda card: card | {"classes": "0123456789"},
    "no classes": lambda card: card | {"classes": []},
    "classes null": lambda card: card | {"classes": None},
    "classes in lists": lambda card: card | {"classes": [[1]] * 10},
    "a class less": lambda card: card | {"classes": card["classes"][1:]},
    "a mean too many": lambda card: card | {"mean": [0.1, 0.2]},
    "a mean as text": lambda card: card | {"mean": "x"},
    "a mean of NaN": lambda card: card | {"mean": [float("nan")]},
    "a deviation of 0": lambda card: card | {"std": [0.0]},
    "a negative deviation": lambda card: card | {"std": [-1.0]},
    "a negative size": lambda card: card | {"image_size": -3},
    "a size of 0": lambda card: card | {"image_size": 0},
    "a size as text": lambda card: card | {"image_size": "8"},
    "a huge size": lambda card: card | {"image_size": 10**12},
    "a fraction as size": lambda card: card | {"image_size": 8.5},
    "another number of channels": lambda card: card | {"channels": 3, "mean": [0.1] * 3, "std": [0.1] * 3},
    "no channels": lambda card: card | {"channels": 0, "mean": [], "std": []},
    "resident as text": lambda card: card | {"resident": "yes"},
    "a model that is a number": lambda card: card | {"model": 3, "spec": None},
    "a spec that is a list": lambda card: card | {"spec": [1]},
    "an empty spec": lambda card: card | {"spec": {}},
    "a spec of another type": spec(type="VGGSpec"),
    "a spec whose type is a list": spec(type=["ResNetSpec"]),
    "a spec of another version": spec(extra=1),
    "units that are a number": spec(stage_units=5),
    "units that are text": spec(stage_units="111"),
    "no units": spec(stage_units=[]),
    "a unit less than one": spec(stage_units=[1, 0, 1]),
    "a billion units": spec(stage_units=[10**9] * 3),
    "more units than tensors": spec(stage_units=[30_000] * 3),
    "other units": spec(stage_units=[2, 1, 1]),
    "another order": spec(order="original"),
    "an order that there is not": spec(order="sideways"),
    "a width as text": spec(width="x"),
    "a negative width": spec(width=-4),
    "a huge width": spec(width=10**12),
    "a width that does not fit into memory": spec(width=2**20),
    "widened as text": spec(widen="x"),
    "widened beyond all": spec(widen=1e308),
    "fixup with a norm": spec(scale="fixup"),
}


def rewrite(change_tensors: Callable[[Tensors], Tensors] | None = None, card: Callable | None = None) -> None:
    with safe_open(WEIGHTS, framework="pt") as file:
        metadata = file.metadata()
    if card is not None:
        metadata["verydeep"] = json.dumps(card(json.loads(metadata["verydeep"])))
    tensors = load_file(WEIGHTS)
    WEIGHTS.write_bytes(save(change_tensors(tensors) if change_tensors else tensors, metadata=metadata))


def use_refused(*names: str) -> None:
    """No verb takes the weights of `run`."""
    for argv in (
        ["evaluate", "run"],
        ["predict", "run", "image.png"],
        ["recalibrate", "run"],
        ["export", "run", "--format", "safetensors", "--out", "new.safetensors"],
        ["export", "run", "--format", "onnx", "--out", "new.onnx"],
    ):
        refused(argv, *names)
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", WEIGHT_FILES)
def test_damaged_weights_are_refused(place, name):
    WEIGHTS.write_bytes(WEIGHT_FILES[name](WEIGHTS.read_bytes()))
    use_refused("run/model.safetensors")
    refused([*TRAIN, "--finetune", "run"], "run")


@pytest.mark.parametrize("name", TENSORS)
def test_other_tensors_are_refused(place, name):
    rewrite(TENSORS[name])
    use_refused("run/model.safetensors")
    refused([*TRAIN, "--finetune", "run"], "finetune run")


@pytest.mark.parametrize("name", CARDS)
def test_another_card_is_refused(place, name):
    rewrite(card=CARDS[name])
    use_refused()


def test_a_card_that_names_code_is_refused_and_the_code_not_run(place):
    (place / "evil.py").write_text("import os\ndef build(**options):\n    os.mkdir('executed')\n")
    rewrite(card=lambda card: card | {"model": "evil.py:build", "spec": None})
    for argv in (["evaluate", "run"], ["predict", "run", "image.png"], ["recalibrate", "run"]):
        refused(argv, "evil.py:build", code=2)
    assert not Path("executed").exists()


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\udcff", "nothing"])
def test_a_card_that_is_no_json_is_refused(place, text):
    WEIGHTS.write_bytes(save(load_file(WEIGHTS), metadata={"verydeep": text.encode(errors="replace").decode()}))
    use_refused("run/model.safetensors")


def test_missing_weights_are_named(place):
    WEIGHTS.unlink()
    use_refused("run")
    WEIGHTS.mkdir()
    use_refused("run")


# results and metrics

RESULTS: list[str | bytes] = [
    "", "x", "[1]", "3", "null", "{}", "{", '"text"', "[" * 100_000, b"\xff\xfe",
    '{"test_error_percent": "x"}', '{"test_error_percent": [1]}', '{"test_error_percent": NaN}', '{"steps": 1}',
]  # fmt: skip
METRICS: list[str | bytes] = [
    "x\n", "[1]\n", "3\n", "null\n", "{}\n", "{\n", "\0\n", b"\xff\xfe\n", "[" * 100_000 + "\n", '{"step": 1}\n',
    '{"kind": "train"}\n', '{"step": "x", "kind": "train"}\n', '{"step": 1e999, "kind": "train"}\n',
    '{"step": NaN, "kind": "train"}\n', '{"step": 1, "kind": ["train"]}\n',
]  # fmt: skip
MEASURED: list[str] = [
    '{"step": 1, "kind": "train"}\n', '{"step": 1, "kind": "train", "loss": "x", "error_percent": 1}\n',
    '{"step": 1, "kind": "test", "loss": {"a": 1}, "error_percent": 1}\n',
    '{"step": 1, "kind": "train", "loss": 1, "error_percent": [1]}\n',
]  # fmt: skip


def overwrite(path: str, content: str | bytes) -> None:
    Path(path).write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize("content", RESULTS, ids=lambda content: repr(content)[:40])
def test_a_damaged_result_is_refused(place, content):
    overwrite("run/result.json", content)
    refused(["report", "run"], "run", "result.json", code=2)
    refused(["train", "--resume", "run"], "run", "result.json", code=2)


@pytest.mark.parametrize("content", METRICS, ids=lambda content: repr(content)[:40])
def test_damaged_metrics_are_refused(place, content):
    for path in ("run", "stopped"):
        overwrite(f"{path}/metrics.jsonl", content)
    refused(["report", "run"], "run/metrics.jsonl", code=2)
    refused(["train", "--resume", "stopped"], "stopped/metrics.jsonl", code=2)


@pytest.mark.parametrize("content", MEASURED, ids=lambda content: content[:40])
def test_measurements_that_are_no_numbers_are_refused(place, content):
    overwrite("run/metrics.jsonl", content)
    refused(["report", "run"], "run", "metrics.jsonl", code=2)


REPRODUCTIONS: dict[str, dict[str, str | bytes]] = {
    "no sections": {"chapter.sections.json": ""},
    "sections that are a list": {"chapter.sections.json": "[]"},
    "sections without a title": {"chapter.sections.json": '{"name": "chapter"}', "chapter.json": "{}"},
    "no numbers": {"chapter.sections.json": '{"name": "chapter", "title": "", "intro": "", "sections": []}'},
    "numbers that are text": {
        "chapter.sections.json": '{"name": "chapter", "title": "", "intro": "", "sections": []}',
        "chapter.json": '"x"',
    },
    "a section that is a number": {
        "chapter.sections.json": '{"name": "chapter", "title": "", "intro": "", "sections": [3]}',
        "chapter.json": json.dumps(dict.fromkeys(
            ("command", "versions", "seconds", "seeds", "scale", "data", "image_size", "max_images"), 1)),
    },
    "nested too deep": {"chapter.sections.json": "[" * 100_000},
    "of another encoding": {"chapter.sections.json": b"\xff"},
}  # fmt: skip


@pytest.mark.parametrize("name", REPRODUCTIONS)
def test_a_damaged_reproduction_is_refused(place, name):
    for file, content in REPRODUCTIONS[name].items():
        overwrite(f"folder/{file}", content)
    refused(["report", "folder"], "folder", code=2)


@pytest.mark.parametrize("content", ["", "[]", "{}", "x", "[" * 100_000], ids=lambda content: content[:8])
def test_a_damaged_trial_is_refused(place, content, monkeypatch):
    from verydeep.experiments.reproduce import reproduce

    reproduce("chapter", only=["exact-5"], out="folder")
    (trial,) = Path("folder/trials").rglob("*.json")
    trial.write_text(content)
    argv = ["reproduce", "chapter", "--only", "exact-5", "--out", "folder", "--processes", "1"]
    refused(argv, "trial", "delete it to run it again", code=2)


# any bytes


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes with some of them replaced."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        # as often in the first bytes and the last, where files say what they are
        place = draw(st.integers(0, len(data) - 1) | st.integers(0, 200) | st.integers(len(data) - 200, len(data) - 1))
        changed[place] = draw(st.integers(0, 255))
    return bytes(changed[: draw(st.integers(1, len(data)) | st.just(len(data)))])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_bytes_of_weights_are_taken_or_refused(place, finished, draw):
    WEIGHTS.write_bytes(draw.draw(damaged((finished / "model.safetensors").read_bytes())))
    refused_or_taken(["predict", "run", "image.png"])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_a_checkpoint_of_changed_bytes_is_refused_or_says_what_it_said(place, finished, draw):
    """An archive has bytes that stand for nothing: between its parts, say."""
    original = (finished / "checkpoints" / "last.pt").read_bytes()
    LAST.write_bytes(draw.draw(damaged(original)))
    try:
        loaded = load_checkpoint(LAST.parent)
    except RunError as error:
        assert str(LAST) in str(error) and "\n" not in str(error)
        return
    assert loaded is not None and loaded[1] is None
    assert same(loaded[0], torch.load(io.BytesIO(original), weights_only=True))


def same(one: Any, other: Any) -> bool:
    """Whether two trees of dicts, lists and tensors are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


INPUTS = [
    *(("checkpoint", name) for name in (*FILES, *ENTRIES, *KEYED)),
    *(("weights", name) for name in (*WEIGHT_FILES, *TENSORS)),
    *(("card", name) for name in CARDS),
    *(("result", content) for content in RESULTS),
    *(("metrics", content) for content in (*METRICS, *MEASURED)),
    *(("reproduction", name) for name in REPRODUCTIONS),
]
