"""The command line: what each verb passes on, and how each mistake is refused."""

import contextlib
import dataclasses
import errno
import importlib
import inspect
import json
import os
import subprocess
import sys
import time
import types
import typing
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from verydeep import cli
from verydeep.config import PROTOCOLS, RunConfig
from verydeep.errors import RunError, UsageError
from verydeep.flags import parse, run_config

FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}


def trained(work, argv: list[str]) -> RunConfig:
    """The config that `verydeep train ARGV` hands to the loop."""
    assert cli.main(["train", *argv]) == 0
    ((name, (config,), _),) = work.calls
    assert name == "train"
    return config


def refused(capsys, argv: list[str], code: int = 2) -> str:
    """The one line with which `verydeep ARGV` is refused."""
    assert cli.main(argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("verydeep: error: ")
    return captured.err.removeprefix("verydeep: error: ").rstrip("\n")


# train: flags


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["--batch-size", "3"], "batch_size", 3),
        (["--batch_size", "3"], "batch_size", 3),
        (["--batch-size=3"], "batch_size", 3),
        (["--batch-size", "4", "--batch-size", "3"], "batch_size", 3),
        (["--lr", "1e-4"], "lr", 1e-4),
        (["--lr", "2"], "lr", 2.0),
        (["--gate-bias", "-6"], "gate_bias", -6.0),
        (["--gate-bias", "-1e-3"], "gate_bias", -1e-3),
        (["--clip-grad-norm", "none"], "clip_grad_norm", None),
        (["--norm", "none"], "norm", "none"),
        (["--nesterov", "true"], "nesterov", True),
        (["--nesterov", "false"], "nesterov", False),
        (["--nesterov", "False"], "nesterov", False),
        (["--nesterov"], "nesterov", True),
        (["--nesterov", "--seed", "0"], "nesterov", True),
        (["--sync-bn"], "sync_bn", True),
        (["--milestones", "0.5,0.75"], "milestones", (0.5, 0.75)),
        (["--milestones", "[0.5, 0.75]"], "milestones", (0.5, 0.75)),
        (["--milestones", "0.5"], "milestones", (0.5,)),
        (["--mean", "-0.5,1e-1,0"], "mean", (-0.5, 0.1, 0.0)),
        (["--out", "123"], "out", "123"),
        (["--out", "a: [b"], "out", "a: [b"),
        (["--data", "folder:/a b"], "data", "folder:/a b"),
        (["--protocol", "HE2016-cifar"], "protocol", "he2016_cifar"),
    ],
)
def test_flag_sets_field(work, argv, field, value):
    config = trained(work, argv)
    assert config == dataclasses.replace(RunConfig(), **{field: value})
    assert type(getattr(config, field)) is type(value)


def sample(name: str) -> object:
    """A legal value of the field other than its default."""
    rule, default = FIELDS[name].metadata, FIELDS[name].default
    annotation = str(typing.get_type_hints(RunConfig)[name])
    if name == "protocol":
        return "he2016_cifar"
    if "choices" in rule:
        return next(choice for choice in rule["choices"] if choice != default)
    if "size" in rule:
        return "2GB"
    if "tuple" in annotation:
        return (0.25, 0.5)
    if "bool" in annotation:
        return True
    if "int" in annotation:
        return 7
    return 0.5 if "float" in annotation else "text"


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_a_flag(work, name):
    value = sample(name)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    assert trained(work, [f"--{name.replace('_', '-')}", text]) == dataclasses.replace(RunConfig(), **{name: value})


# train: file


def written(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "config.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_config_file_round_trip(work, tmp_path, protocol):
    config = RunConfig(protocol=protocol, seed=3, mean=(0.5, 0.25, 0.125), nesterov=True).resolved()
    assert trained(work, ["--config", written(tmp_path, yaml.safe_dump(config.to_dict()))]) == config


def test_every_field_in_a_config_file(work, tmp_path):
    values = {name: sample(name) for name in FIELDS if name != "epochs"}
    text = yaml.safe_dump({name: list(v) if isinstance(v, tuple) else v for name, v in values.items()})
    assert trained(work, ["--config", written(tmp_path, text)]) == RunConfig(**values)


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("lr: 1", "lr", 1.0),
        ("batch_size: '3'", "batch_size", 3),
        ("lr: 1e-4", "lr", 1e-4),  # a string to YAML 1.1
        ("milestones: 0.5,0.75", "milestones", (0.5, 0.75)),
        ("milestones: 0.5", "milestones", (0.5,)),
        ("clip_grad_norm: none", "clip_grad_norm", None),
        ("clip_grad_norm: null", "clip_grad_norm", None),
        ("norm: none", "norm", "none"),
        ("sync_bn: yes", "sync_bn", True),
        ("", "seed", 0),
    ],
)
def test_config_file_spellings(work, tmp_path, text, field, value):
    config = trained(work, ["--config", written(tmp_path, text)])
    assert config == dataclasses.replace(RunConfig(), **{field: value})
    assert type(getattr(config, field)) is type(value)


@pytest.mark.parametrize("flags_first", [True, False])
def test_flags_win_over_file(work, tmp_path, flags_first):
    file, flags = ["--config", written(tmp_path, "lr: 0.5\nseed: 4")], ["--lr", "0.25"]
    config = trained(work, flags + file if flags_first else file + flags)
    assert (config.lr, config.seed) == (0.25, 4)


@pytest.mark.parametrize(("flag", "overridden"), [("steps", "epochs"), ("epochs", "steps")])
def test_budget_flag_overrides_the_other_in_the_file(work, tmp_path, flag, overridden):
    config = trained(work, ["--config", written(tmp_path, f"{overridden}: 9"), f"--{flag}", "5"])
    assert (getattr(config, flag), getattr(config, overridden)) == (5, None)


# Refusals. The whole line is compared: the argument, the value, the rule.

BAD_USAGE = {
    "train --batch-size x": "argument --batch-size 'x': must be a whole number (int)",
    "train --batch-size 1.5": "argument --batch-size '1.5': must be a whole number (int)",
    "train --batch-size": "argument --batch-size: needs a value, which must be a whole number (int)",
    "train --seed none": "argument --seed 'none': must be a whole number (int)",
    "train --lr nan": "argument --lr 'nan': must be a finite number (float)",
    "train --lr .nan": "argument --lr nan: must be a finite number",
    "train --lr -0.1": "argument --lr -0.1: must be above 0",
    "train --nesterov maybe": "argument --nesterov 'maybe': must be true or false (bool)",
    "train --milestones 0.5,x": "argument --milestones '0.5,x': must be numbers separated by commas",
    "train --steps 0": "argument --steps 0: must be at least 1",
    "train --epochs 3 --steps 4": "argument --epochs 3 and steps 4: give one of the two, not both",
    "train --optimizer sgdd": "argument --optimizer 'sgdd': must be one of sgd, adamw, lars",
    "train --protocol quik": "argument --protocol 'quik': unknown; nearest: quick",
    "train --bach-size 3": "argument --bach-size: unknown; nearest: --batch-size, --branch-scale, --image-size",
    "train --batch 3": "argument --batch: unknown; nearest: --batch-size",
    "train --config no.yaml": "argument --config 'no.yaml': no such file or directory",
    "train --config .": "argument --config '.': is a directory",
    "train --json no/x.json": "argument --json 'no/x.json': must lie in an existing directory",
    "train --json .": "argument --json '.': must be a file, not a directory",
    "train resnet20": "argument 'resnet20': unexpected; a flag begins with --",
    "evaluate": "argument RUN: required",
    "evaluate run1 run2": "argument 'run2': unexpected; a flag begins with --",
    "predict run": "argument IMAGES: required",
    "predict run a.png --top 0": "argument --top 0: must be at least 1",
    "predict run a.png --out a.txt": "argument --out 'a.txt': must end in .csv or .json",
    "predict run a.png --out no/a.csv": "argument --out 'no/a.csv': must lie in an existing directory",
    "recalibrate run --images 1": "argument --images 1: must be at least 2",
    "evaluate run --batch-size 0": "argument --batch-size 0: must be at least 1",
    "export run --format safetensors": "argument --out: required",
    "trian": "argument VERB 'trian': unknown; nearest: train",
    "": "argument VERB: required; one of train, evaluate, predict, diagnose, recalibrate, reproduce, bench, report, "
    "models, export",
}


@pytest.mark.parametrize("line", BAD_USAGE)
def test_bad_usage(work, capsys, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    assert refused(capsys, line.split()) == BAD_USAGE[line]
    assert work.calls == []


BAD_FILES = {
    "batch_sise: 3": "key 'batch_sise': unknown; nearest: batch_size, ",
    "1: 3": "key 1: unknown; nearest: ",
    "batch_size: x": "batch_size 'x': must be a whole number (int)",
    "batch_size: [1]": "batch_size [1]: must be a whole number (int)",
    "data: null": "data null: must be text (str)",
    "lr: '['": "lr '[': must be a finite number (float)",
    "out: 3": "out 3: must be text (str)",
    "nesterov: 1": "nesterov 1: must be true or false (bool)",
    "steps: 0": "steps 0: must be at least 1",
    "lr: .inf": "lr inf: must be a finite number",
    "steps: 3\nepochs: 4": "epochs 4 and steps 3: give one of the two, not both",
    "[a, b]": "must be a mapping of fields to values, not a list",
    "just words": "must be a mapping of fields to values, not a str",
    "seed: 1\nlr: [": "line 2: not plain YAML: ",
    "out: 2024-99-99": "line 1: not plain YAML: '2024-99-99' is no tag:yaml.org,2002:timestamp",
    "[" * 5000: "not plain YAML: ",
    b"\x89PNG\r\n\x1a\n\xff": "must be YAML text in UTF-8",
    b"lr: \x00": "not plain YAML: special characters are not allowed",
}


@pytest.mark.parametrize("text", BAD_FILES, ids=lambda text: repr(text)[:24])
def test_bad_config_file(work, capsys, tmp_path, text):
    path = written(tmp_path, text)
    assert refused(capsys, ["train", "--config", path]).startswith(f"config {path}: {BAD_FILES[text]}")
    assert work.calls == []


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def checked(config: RunConfig, fields: dict[str, object]) -> None:
    """What was accepted has the types that it was declared with."""
    for name in fields:
        value, annotation = getattr(config, name), str(typing.get_type_hints(RunConfig)[name])
        assert type(value).__name__ in annotation.replace("NoneType", "None") or value is None


@given(name=st.sampled_from(list(FIELDS)), text=st.text() | st.from_regex(r"[-+0-9.eE,\[\]]+", fullmatch=True))
def test_any_text_of_a_flag_is_taken_or_refused(name, text):
    with contextlib.suppress(UsageError):
        flags = parse("train", "", cli.VERBS["train"].flags, [f"--{name}={text}"])
        checked(*run_config({key: value for key, value in flags.items() if key in FIELDS}))


@given(name=st.sampled_from(list(FIELDS)), value=PLAIN)
def test_any_value_in_a_config_file_is_taken_or_refused(tmp_path_factory, name, value):
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_text(yaml.safe_dump({name: value}))
    with contextlib.suppress(UsageError):
        checked(*run_config({}, str(path)))


def test_config_file_executes_nothing(work, capsys, tmp_path):
    target = tmp_path / "executed"
    path = written(tmp_path, f"out: !!python/object/apply:pathlib.Path.touch [!!python/name:pathlib.Path '{target}']")
    assert "line 1: not plain YAML: could not determine a constructor for the tag" in refused(
        capsys, ["train", "--config", path]
    )
    assert not target.exists()
    assert work.calls == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UsageError("depth 9: no"), 2, "depth 9: no"),
        (RunError("step 3: loss is NaN"), 1, "step 3: loss is NaN"),
        (RunError("two\nlines \x1b[31m"), 1, r"two\nlines \x1b[31m"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 1, "runs/x: No space left on device"),
        (OSError("odd"), 1, "internal error: OSError: odd; --debug shows where"),
        (ZeroDivisionError("div"), 1, "internal error: ZeroDivisionError: div; --debug shows where"),
        (SystemExit("no data"), 1, "SystemExit: no data"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(work, capsys, error, code, message):
    def fail(config):
        raise error

    work.replace("verydeep.training.loop", "train", fail)
    assert refused(capsys, ["train"], code) == message


def test_debug_shows_the_traceback(work, capsys):
    def fail(config):
        raise RunError("broken")

    work.replace("verydeep.training.loop", "train", fail)
    assert cli.main(["train", "--debug"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "verydeep: error: broken"


# What the verbs pass on and print


def test_train_prints_summary_and_writes_json(work, capsys, tmp_path):
    assert cli.main(["train", "--json", str(tmp_path / "x.json")]) == 0
    assert capsys.readouterr().out == "trained\n"
    assert json.loads((tmp_path / "x.json").read_text()) == {"directory": "runs/x", "train_loss": None, "steps": 3}


def test_resume_passes_the_explicit_fields(work, tmp_path):
    path = written(tmp_path, "log_steps: 5\nepochs: 4")
    assert cli.main(["train", "--resume", "runs/x", "--steps", "50", "--config", path]) == 0
    assert work.calls == [("resume", ("runs/x", {"log_steps": 5, "steps": 50}), {})]


def test_resume_checks_the_fields(work, capsys):
    assert refused(capsys, ["train", "--resume", "runs/x", "--steps", "0"]) == (
        "argument --steps 0: must be at least 1"
    )
    assert work.calls == []


def test_only_the_first_process_speaks(work, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    assert cli.main(["train", "--json", str(tmp_path / "x.json")]) == 0
    assert capsys.readouterr().out == ""
    assert not (tmp_path / "x.json").exists()


def test_evaluate(work, capsys, tmp_path):
    assert cli.main(["evaluate", "--batch-size", "8", "runs/x", "--json", str(tmp_path / "x.json")]) == 0
    options = {"data": None, "device": "auto", "batch_size": 8, "image_size": None, "resize": None, "model": None}
    options["weights"] = "last"
    assert work.calls == [("evaluate_run", ("runs/x",), options)]
    assert json.loads((tmp_path / "x.json").read_text()) == {"error_percent": 6.25, "num_images": 10000}
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["error_percent", "6.25"] in lines
    assert ["num_images", "10,000"] in lines


def test_positionals_stand_anywhere(work):
    assert cli.main(["predict", "run", "a.png", "--top", "3", "b.png", "--debug", "c.png"]) == 0
    assert work.calls[0] == (
        "predict",
        ("run", ["a.png", "b.png", "c.png"]),
        {"top": 3, "batch_size": 64, "device": "auto", "model": None, "weights": "last"},
    )


def test_dashes_begin_a_file_name(work):
    assert cli.main(["predict", "--top", "3", "--", "-run", "--a.png"]) == 0
    assert work.calls[0][1] == ("-run", ["--a.png"])


def test_predict_names_failures_after_the_table(work, capsys, tmp_path):
    good = types.SimpleNamespace(path="[red]a:smile:.png", classes=[("cat", 0.75)], error=None)
    bad = types.SimpleNamespace(path=Path("b.png"), classes=None, error="truncated")
    work.replace("verydeep.predict", "predict", lambda run, paths, **options: [bad, good])
    assert cli.main(["predict", "run", "x", "--json", str(tmp_path / "x.json")]) == 1
    captured = capsys.readouterr()
    lines = [line.split() for line in captured.out.splitlines()]
    assert ["b.png", "error:", "truncated"] in lines
    assert ["[red]a:smile:.png", "cat", "75.0%"] in lines
    assert captured.err == "verydeep: error: 1 of 2 images could not be read: b.png\n"
    assert json.loads((tmp_path / "x.json").read_text()) == {
        "run": "run",
        "predictions": [
            {"path": "b.png", "classes": None, "error": "truncated"},
            {"path": "[red]a:smile:.png", "classes": [["cat", 0.75]], "error": None},
        ],
    }


@pytest.fixture
def two_predictions(work):
    """One image named, one that could not be read, whose name is not UTF-8."""
    good = types.SimpleNamespace(path="a,b.png", classes=[("tabby cat", 0.75), ("dog", 0.25)], error=None)
    bad = types.SimpleNamespace(path=os.fsdecode(b"\xff.png"), classes=None, error="empty file")
    work.replace("verydeep.predict", "predict", lambda run, paths, **options: [good, bad])


def test_predict_writes_csv(two_predictions, tmp_path):
    out = tmp_path / "x.CSV"
    assert cli.main(["predict", "run", "x", "--out", str(out)]) == 1
    assert out.read_bytes() == (
        b"path,error,class_1,probability_1,class_2,probability_2\n"
        b'"a,b.png",,tabby cat,0.75,dog,0.25\n'
        b"\xff.png,empty file,,,,\n"
    )


def test_predict_writes_json_and_nothing_over(two_predictions, capsys, tmp_path):
    out = tmp_path / "x.json"
    assert cli.main(["predict", "run", "x", "--out", str(out)]) == 1
    predictions = json.loads(out.read_text())["predictions"]
    assert predictions[0] == {"path": "a,b.png", "classes": [["tabby cat", 0.75], ["dog", 0.25]], "error": None}
    assert predictions[1]["error"] == "empty file"
    before = out.read_bytes()
    capsys.readouterr()
    assert refused(capsys, ["predict", "run", "x", "--out", str(out)]).endswith("exists; give another name")
    assert out.read_bytes() == before


def test_redirected_table_is_plain_and_whole(work, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    name = "long" * 100
    work.replace("verydeep.models.catalogue", "describe", lambda _: {"name": name, "depth": 1001, "params": 10327706})
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert [name, "1001", "10,327,706"] in [line.split() for line in out.splitlines()]


def test_models_lists_a_legal_name_that_no_list_has(work, capsys):
    work.replace("verydeep.models.catalogue", "list_models", lambda pattern: [])
    assert cli.main(["models", "resnet8_cifar"]) == 0
    assert "resnet8_cifar" in capsys.readouterr().out


def test_models_without_a_match_names_the_nearest(capsys):
    assert refused(capsys, ["models", "preact_resnett20*"]).startswith(
        "argument PATTERN 'preact_resnett20*': no such model; nearest: preact_resnet20"
    )
    assert refused(capsys, ["models", "resnet20_cifra"]).startswith(
        "model 'resnet20_cifra': unknown; nearest: resnet20_cifar"
    )


CALLED = {
    "train": "verydeep.training.loop",
    "resume": "verydeep.training.loop",
    "evaluate_run": "verydeep.saved",
    "predict": "verydeep.predict",
    "list_models": "verydeep.models.catalogue",
    "describe": "verydeep.models.catalogue",
    "export_run": "verydeep.export",
    "recalibrate_run": "verydeep.recalibrate",
}


def test_verbs_call_functions_as_they_are(request):
    signatures = {name: inspect.signature(getattr(importlib.import_module(CALLED[name]), name)) for name in CALLED}
    work = request.getfixturevalue("work")
    for line in (
        "train",
        "train --resume r",
        "evaluate r",
        "predict r a.png",
        "models",
        "export r --format safetensors --out x",
        "recalibrate r",
    ):
        assert cli.main(line.split()) == 0
    assert {name for name, _, _ in work.calls} == set(CALLED)
    for name, args, options in work.calls:
        signatures[name].bind(*args, **options)


def test_export(work):
    assert cli.main(["export", "run", "--format", "safetensors", "--out", "x"]) == 0
    options = {"weights": "last", "fold": False, "opset": None, "model": None}
    assert work.calls == [("export_run", ("run",), {"format": "safetensors", "out": "x"} | options)]
    assert cli.main(["export", "run", "--format", "onnx", "--fold", "--opset", "20", "--out", "y"]) == 0
    assert work.calls[1][2] == {"format": "onnx", "out": "y"} | options | {"fold": True, "opset": 20}


def test_recalibrate(work, capsys, tmp_path):
    assert cli.main(["recalibrate", "runs/x", "--images", "500", "--json", str(tmp_path / "x.json")]) == 0
    options = {"data": None, "num_images": 500, "batch_size": None, "device": "auto", "model": None, "weights": "last"}
    assert work.calls == [("recalibrate_run", ("runs/x",), options)]
    assert json.loads((tmp_path / "x.json").read_text()) == {"test_error_percent": 6.25}
    assert ["test_error_percent", "6.25"] in [line.split() for line in capsys.readouterr().out.splitlines()]


# Help


@pytest.mark.parametrize("verb", cli.VERBS)
def test_verb_help(work, capsys, verb):
    assert cli.main([verb, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: verydeep {verb} ")
    for group in cli.VERBS[verb].flags.values():
        for flag in group:
            assert flag.spelling in out
    assert work.calls == []


def test_version(capsys):
    import verydeep

    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"verydeep {verydeep.__version__}\n"


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"]], ids=" ".join)
def test_help_is_instant(argv):
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "verydeep", *argv], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
        assert done.stdout.startswith("usage: verydeep")
    assert min(seconds) < 1


def test_reader_that_leaves_is_no_error():
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as closed:
        done = subprocess.run([sys.executable, "-m", "verydeep", "--help"], stdout=closed, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"")
