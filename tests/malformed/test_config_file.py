"""Malformed YAML: given with --config, and as the config.yaml of a run."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.malformed.refusal import refused, refused_or_taken
from verydeep.config import RunConfig
from verydeep.training import loop

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)  # 9^9 items
)

# what no config file may be -> what the line names
FILES: dict[str | bytes, str] = {
    "just words": "not a str",
    "[lr, seed]": "not a list",
    "3": "not a int",
    "lr: [": "line 1",
    "lr: {": "line 1",
    "lr: 'half": "line 1",
    'lr: "half': "line 1",
    "\tlr: 1": "line 1",
    "lr: 1\n  seed: 2": "line 2",
    "- lr\nseed: 1": "line 2",
    "lr: 1\n---\nseed: 2": "line 2",
    "lr: 0.1\nlr: 0.2": "key 'lr' is given twice",
    "lr: 0.1\n'lr': 0.2": "key 'lr' is given twice",
    "lr: &x 0.1\nmomentum: *x": "aliases",
    "<<: &x {lr: 0.1}\nmilestones: [*x]": "aliases",
    BOMB: "aliases",
    "lr: *nowhere": "aliases",
    "[" * 3000: "not plain YAML",
    "{a: " * 2000: "not plain YAML",
    "lr: !!python/object/apply:os.mkdir [executed]": "constructor",
    "lr: !!python/object/new:os.mkdir [executed]": "constructor",
    "lr: !!python/name:os.mkdir": "constructor",
    "!!python/object/apply:os.mkdir [executed]": "constructor",
    "lr: !own 3": "constructor",
    "lr: !!binary 3": "base64",
    "lr: !!bool foo": "line 1: not plain YAML: 'foo' is no tag:yaml.org,2002:bool",
    "lr: !!int ''": "line 1: not plain YAML: '' is no",
    "lr: !!float ''": "line 1: not plain YAML: '' is no",
    "seed: 1\nlr: !!timestamp foo": "line 2: not plain YAML: 'foo' is no",
    "lr: !!map [a]": "line 1",
    "lr: !!map [[a, b]]": "line 1",
    "lr: !!set [a]": "line 1",
    "? [lr]\n: 1": "unhashable",
    "{lr: 1}: 2": "unhashable",
    "out: 2024-99-99": "'2024-99-99' is no tag:yaml.org,2002:timestamp",
    "%YAML 9.0\n---\nlr: 1": "line 1",
    "@lr: 1": "line 1",
    "lr: `1`": "line 1",
    b"\x89PNG\r\n\x1a\n\xff": "UTF-8",
    b"\xff\xfe": "UTF-8",
    b"lr: \x00": "special characters",
    b"lr: \x1b[31m": "special characters",
    "lr: 0.1\n".encode("utf-16"): "UTF-8",
    "lr: 0.1\n".encode("utf-32-le"): "special characters",
    b"\x80\x04\x95": "UTF-8",
    f"seed: 1{'0' * 5000}": "not plain YAML",
}

# a field with a value that it may not have -> what the line names
FIELDS: dict[str, str] = {
    "bacth_size: 3": "'bacth_size'",
    "3: 3": "3",
    "null: 3": "None",
    "true: 3": "True",
    "steps: 0": "steps 0",
    "batch_size: -4": "batch_size -4",
    "batch_size: [4]": "batch_size",
    "batch_size: {a: 4}": "batch_size",
    "batch_size: 4.5": "batch_size",
    "batch_size: yes": "batch_size",
    "batch_size: 99999999999999999999999": "batch_size 99999999999999999999999",
    "lr: {a: 1}": "lr",
    "lr: [0.1]": "lr",
    "lr: true": "lr",
    "lr: .nan": "lr nan",
    "lr: -.inf": "lr -inf",
    "lr: 1e308": "lr 1e+308",
    "lr: fast": "lr 'fast'",
    "milestones: {a: 1}": "milestones",
    "milestones: [[0.5]]": "milestones",
    "milestones: [0.5, x]": "milestones",
    "milestones: [0.5, .nan]": "milestones nan",
    "milestones: [2]": "milestones 2",
    "mean: true": "mean",
    "model: 3": "model 3",
    "model: null": "model",
    "model: [a]": "model",
    "model: ''": "model ''",
    "model: evil.py:build": "evil.py:build",
    "out: [1]": "out",
    "out: {a: 1}": "out",
    'out: "a\\0b"': "out 'a\\x00b'",
    "out: ''": "out ''",
    "data: ''": "data ''",
    "data: 3": "data 3",
    "nesterov: 1": "nesterov 1",
    "nesterov: maybe": "nesterov 'maybe'",
    "precision: bf17": "precision 'bf17'",
    "protocol: quik": "protocol 'quik'",
    "protocol: []": "protocol",
    "memory_budget: 3.5": "memory_budget",
    "memory_budget: lots": "memory_budget 'lots'",
    "steps: 3\nepochs: 4": "epochs 4 and steps 3",
    "seed: 2024-01-01": "seed",
    "sync_bn: null": "sync_bn",
    "validation: null": "validation",
}


def write(text: str | bytes, path: str = "c.yaml") -> None:
    Path(path).write_bytes(text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("text", [*FILES, *FIELDS], ids=lambda text: repr(text)[:40])
def test_a_config_file_is_refused_by_name(place, text):
    write(text)
    refused(["train", "--config", "c.yaml"], "c.yaml", (FILES | FIELDS)[text], code=2)
    refused(["bench", "--config", "c.yaml"], "c.yaml", code=2)
    assert not Path("executed").exists()


# A run's own file is complete, and may name what the user alone may ask for.
ONLY_OF_RUNS = {"": "NoneType", "# nothing": "NoneType", "~": "NoneType"}


@pytest.mark.parametrize("text", [*FILES, *FIELDS, *ONLY_OF_RUNS], ids=lambda text: repr(text)[:40])
def test_the_config_of_a_run_is_refused_by_name(place, text):
    for path in ("run", "stopped"):
        write(text, f"{path}/config.yaml")
    if text == "model: evil.py:build":
        refused(["train", "--resume", "stopped"], "evil.py:build", code=2)
        return
    refused(["train", "--resume", "stopped"], "stopped", code=2)
    refused(["evaluate", "run"], "run", code=2)
    refused(["report", "run"], "run", code=2)
    refused(["predict", "run", "image.png"], "run", code=2)
    assert not Path("executed").exists()


def test_a_config_of_a_run_that_is_not_there_is_named(place):
    for path in ("run", "stopped"):
        Path(path, "config.yaml").unlink()
    for argv in (["evaluate", "run"], ["predict", "run", "image.png"], ["recalibrate", "run"], ["report", "run"]):
        refused(argv, "run", "config.yaml", code=2)
    refused(["train", "--resume", "stopped"], "stopped", "config.yaml", code=2)


VALID = yaml.safe_dump(RunConfig(steps=2).resolved().to_dict(), sort_keys=False).encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The config of a run with some bytes replaced, put in or cut off."""
    data = bytearray(VALID)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(data) - 1))
        kind = draw(st.sampled_from(("replace", "insert", "cut")))
        if kind == "replace":
            data[place] = draw(st.integers(0, 255))
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=8))
        else:
            del data[place : place + draw(st.integers(1, 30))]
    return bytes(data)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=damaged() | st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_taken_or_refused(place, content):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train", lambda config: _Taken())
        write(content)
        refused_or_taken(["train", "--config", "c.yaml"])
        write(content, "run/config.yaml")
        refused_or_taken(["evaluate", "run"])


class _Taken:
    """What `train` returns, as far as the command line looks at it."""

    def summary(self) -> str:
        return "taken"

    def to_dict(self) -> dict[str, object]:
        return {}


INPUTS = [*FILES, *FIELDS, *ONLY_OF_RUNS]
