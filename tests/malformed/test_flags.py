"""Malformed flags of every verb."""

import os
import subprocess
import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.malformed.refusal import outcome, refused, stated
from verydeep import cli
from verydeep.flags import Flag

TRAIN = [
    "train", "--model", "preact_resnet8_cifar", "--width", "4", "--max-images", "64",
    "--batch-size", "32", "--steps", "1", "--out", "new",
]  # fmt: skip

# what each verb needs beside the flag that is malformed
GIVEN = {
    "train": TRAIN[1:],
    "evaluate": ["run"],
    "predict": ["run", "image.png"],
    "diagnose": ["--model", "preact_resnet8_cifar"],
    "recalibrate": ["run"],
    "reproduce": ["chapter", "--only", "exact-1"],
    "bench": TRAIN[1:-2],
    "report": ["run"],
    "models": [],
    "export": ["run", "--format", "safetensors", "--out", "new.safetensors"],
}

NUMBERS = ["", "x", "1,5", "[1]", "{}", "nan", "1 2", "--", "\0", "1\n2"]
OF_KIND = {
    int: [*NUMBERS, "1.5", "1e3", "9" * 25, "9" * 5000],
    float: [*NUMBERS, "inf", "-inf", "1e400", "0x", "9" * 5000],
    bool: ["maybe", "2", "[]", "yes please", "nul"],
    tuple: ["x", "0.5,x", "[0.5", "{}", "[[0.5]]", "1e400", "nan", "0.5;0.7", "\0"],
    str: ["", "\0", "a\0b"],
}


def flags_of(verb: str) -> list[Flag]:
    """The flags of a verb; those that bench shares with train are tried there."""
    flags = {flag.name: flag for group in cli.VERBS[verb].flags.values() for flag in group}
    if verb == "bench":
        shared = {flag.name for group in cli.VERBS["train"].flags.values() for flag in group}
        flags = {name: flag for name, flag in flags.items() if name not in shared}
    return [flag for flag in flags.values() if not flag.positional]


def malformed(flag: Flag) -> list[str]:
    texts = list(OF_KIND[flag.kind])
    if flag.least is not None:
        texts += [str(flag.least - 1), "-9999999999999999999"]
    return texts


OF_FLAGS = [(verb, flag) for verb in cli.VERBS for flag in flags_of(verb)]


@pytest.mark.parametrize(("verb", "flag"), OF_FLAGS, ids=lambda value: getattr(value, "name", value))
def test_a_value_of_the_wrong_kind_is_named(place, verb, flag):
    for text in malformed(flag):
        refused([verb, *GIVEN[verb], f"{flag.spelling}={text}"], flag.spelling, code=2)


BAD_VALUES = {
    # train: values of the right kind that break a rule
    "train --batch-size 0": "batch-size 0",
    "train --accumulate 0": "accumulate 0",
    "train --accumulate -1": "accumulate -1",
    "train --steps -3": "steps -3",
    "train --epochs 0": "epochs 0",
    "train --seed -1": "seed -1",
    "train --lr 0": "lr 0.0",
    "train --lr 1e308": "lr 1e+308",
    "train --momentum 1": "momentum 1.0",
    "train --momentum -0.1": "momentum -0.1",
    "train --milestones 0.5,1": "milestones 1.0",
    "train --milestones -0.5": "milestones -0.5",
    "train --warmup 1": "warmup 1.0",
    "train --ema 1": "ema 1.0",
    "train --ema 0.99999999999999999999": "ema 1.0",
    "train --mixup -1": "mixup -1",
    "train --mixup 1e-320": "mixup 1e-320",
    "train --cutmix 1e-30": "cutmix 1e-30",
    "train --label-smoothing 1": "label-smoothing 1",
    "train --optimizer adam": "optimizer 'adam'",
    "train --schedule cosin": "schedule 'cosin'",
    "train --precision fp16": "precision 'fp16'",
    "train --protocol nobody": "protocol 'nobody'",
    "train --device tpu": "device 'tpu'",
    "train --device cuda:99": "device cuda:99",
    "train --device cuda:-1": "device 'cuda:-1'",
    "train --device cpu:1": "device 'cpu:1'",
    "train --device meta": "device 'meta'",
    "train --model nosuch": "model 'nosuch'",
    "train --model resnet9_cifar": "depth 9",
    "train --model resnet0_cifar": "depth 0",
    "train --model resnet-20_cifar": "model 'resnet-20_cifar'",
    "train --model resnet20_cifar;ls": "model 'resnet20_cifar;ls'",
    "train --model resnet\uff12\uff10_cifar": "model 'resnet\uff12\uff10_cifar'",
    f"train --model resnet{'9' * 5000}_cifar": "unknown",
    "train --model resnet999998_cifar": "stage_units (166666, 166666, 166666)",
    "train --model densenet999998_k12_cifar": "999998",
    "train --model highway999999": "num_units",
    "train --model no.py:build": "no.py",
    "train --model old.json": "model 'old.json'",
    "train --model image.png.py:": "image.png.py",
    "train --order sideways": "order 'sideways'",
    "train --unit onion": "unit 'onion'",
    "train --shortcut cut": "shortcut 'cut'",
    "train --option C": "option 'C'",
    "train --norm btach": "norm 'btach'",
    "train --scale fixup": "scale fixup with norm batch",
    "train --scale fixup+skipinit": "scale 'fixup+skipinit'",
    "train --num-groups 3": "num_groups 3 with norm batch",
    "train --norm group --num-groups 3": "num_groups 3",
    "train --norm instance --image-size 1": "norm instance on a 1x1 map",
    "train --stride-on 3x3": "stride_on 3x3",
    "train --stem-order pool_first": "stem_order pool_first",
    "train --gate-bias -3": "gate_bias -3.0",
    "train --shortcut-dropout 0.5": "shortcut_dropout 0.5",
    "train --shortcut none --scale skipinit": "scale skipinit with shortcut none",
    "train --stochastic-depth 1": "stochastic-depth 1",
    "train --width 99999999999": "width 99999999999",
    "train --widen 1e30": "widen 1e+30",
    "train --widen 0.001": "widen 0.001",
    "train --bn-group-size 1": "bn-group-size 1",
    "train --image-size 65536": "image_size 65536",
    "train --image-size 99999999999": "image_size 99999999999",
    "train --max-images 1": "1 training images",
    "train --validation 60000": "validation 60000",
    "train --crop-padding 8": "crop_padding 8",
    "train --color-jitter pca": "color_jitter 'pca'",
    "train --random-erasing 1": "random-erasing 1",
    "train --mean 0.5,0.5": "mean (0.5, 0.5)",
    "train --std 0": "std (0.0,)",
    "train --std -1": "std (-1.0,)",
    "train --memory-budget 2XB": "memory-budget '2XB'",
    "train --memory-budget -1": "memory-budget '-1'",
    "train --memory-budget 1B": "memory_budget 1B",
    f"train --memory-budget {'9' * 400}GB": "memory-budget",
    "train --freeze nosuch": "freeze 'nosuch'",
    "train --freeze ,": "freeze ''",
    "train --freeze stem,stages,head": "freeze stem,stages,head",
    "train --finetune absent": "finetune absent",
    "train --finetune folder": "finetune folder",
    "train --finetune image.png": "finetune image.png",
    "train --data digit": "data 'digit'",
    "train --data DIGITS": "data 'DIGITS'",
    "train --data run": "data 'run'",
    "train --data folder:": "data 'folder:'",
    "train --data folder:absent": "data 'folder:absent'",
    "train --data folder:image.png": "data 'folder:image.png'",
    "train --data folder:folder": "data 'folder:folder'",
    "train --data folder:/dev/null": "data 'folder:/dev/null'",
    "train --data csv:absent": "data 'csv:absent'",
    "train --data csv:folder": "data 'csv:folder'",
    "train --data csv:image.png": "data 'csv:image.png'",
    "train --data parquet:absent": "data 'parquet:absent'",
    "train --data parquet:folder": "data 'parquet:folder'",
    f"train --data csv:{'x' * 5000}": "name too long",
    # train: what does not go together, and where it may not write
    "train --epochs 3": "epochs 3 and steps 1",
    "train --out run": "out run: holds a run",
    "train --out image.png": "out image.png",
    "train --out image.png/below": "out image.png/below",
    "train --out /dev/null": "out /dev/null",
    "train --out /proc/new": "out /proc/new",
    f"train --out {'x' * 5000}": "ame too long",
    "train --json run/result.json": "--json 'run/result.json'",
    "train --json folder": "--json 'folder'",
    "train --json absent/x.json": "--json 'absent/x.json'",
    "train --json image.png/x.json": "--json 'image.png/x.json'",
    f"train --json {'x' * 5000}": "--json",
    "train --config absent.yaml": "--config 'absent.yaml'",
    "train --config folder": "--config 'folder'",
    "train --config image.png": "config image.png",
    "train --resume absent": "run absent: no such run directory",
    "train --resume image.png": "run image.png: no such run directory",
    "train --resume folder": "run folder: config.yaml",
    "train --resume stopped --lr 9": "lr 9.0 with resume stopped",
    "train --resume stopped --model plain20_cifar": "model 'plain20_cifar' with resume stopped",
    # unknown, missing, too many
    "train --nosuch 1": "--nosuch",
    "train ---lr 1": "---lr",
    "train --lr": "--lr",
    "train --lr --seed 1": "--lr",
    "train stray": "'stray'",
    "train -x": "'-x'",
    "trane": "VERB 'trane'",
    "-1": "VERB '-1'",
    "TRAIN --steps x": "--steps 'x'",
    "\0": "VERB",
    # the other verbs
    "evaluate": "RUN",
    "evaluate absent": "absent",
    "evaluate folder": "run folder",
    "evaluate image.png": "image.png",
    "evaluate stopped": "run stopped",
    "evaluate run stopped": "'stopped'",
    "evaluate run --weights first": "weights 'first'",
    "evaluate run --weights recalibrated": "weights recalibrated",
    "evaluate run --data absent": "data 'absent'",
    "evaluate run --resize 4": "resize 4",
    "evaluate run --image-size 70000": "image_size 70000",
    "evaluate run --device xpu": "device 'xpu'",
    "evaluate run --model no.py:build": "no.py",
    "predict": "RUN",
    "predict run": "IMAGES",
    "predict absent image.png": "absent",
    "predict run absent.png": "'absent.png'",
    "predict run folder": "'folder'",
    "predict run *.jpg": "'*.jpg'",
    "predict run [": "'['",
    "predict run old.json": "old.json",
    "predict run image.png --top 0": "--top 0",
    "predict run image.png --out old.json": "--out 'old.json'",
    "predict run image.png --out x.txt": "--out 'x.txt'",
    "predict run image.png --out folder.csv/x.csv": "--out 'folder.csv/x.csv'",
    "diagnose": "--model",
    "diagnose --model nosuch": "'nosuch'",
    "diagnose --model timm:nosuch": "timm:nosuch",
    "diagnose --model torchvision:nosuch": "torchvision:nosuch",
    "diagnose --model preact_resnet8_cifar --lr 0": "lr 0",
    "diagnose --model preact_resnet8_cifar --lr 1e300": "lr 1e+300",
    "diagnose --model preact_resnet8_cifar --device meta": "device 'meta'",
    "diagnose --model preact_resnet8_cifar --device cuda:77": "device cuda:77",
    "diagnose --model preact_resnet8_cifar --seed 99999999999999999999": "seed 99999999999999999999",
    "diagnose --model preact_resnet8_cifar --image-size 70000": "image_size 70000",
    "diagnose --model preact_resnet8_cifar --fail-on fatal": "--fail-on 'fatal'",
    "diagnose --model preact_resnet8_cifar --data none": "data 'none'",
    "diagnose --model preact_resnet8_cifar --out folder": "--out 'folder'",
    "diagnose --model preact_resnet8_cifar --out run/config.yaml": "--out 'run/config.yaml'",
    "diagnose --model preact_resnet8_cifar --out image.png/x.html": "--out 'image.png/x.html'",
    "recalibrate absent": "absent",
    "recalibrate run --images 1": "--images 1",
    "recalibrate run --weights recalibrated": "weights 'recalibrated'",
    "recalibrate run --data nosuch": "data 'nosuch'",
    "reproduce": "NAME",
    "reproduce tables": "reproduce 'tables'",
    "reproduce chapter --only nosuch": "only 'nosuch'",
    "reproduce chapter --scale huge": "scale 'huge'",
    "reproduce chapter --engine slurm": "engine 'slurm'",
    "reproduce chapter --engine ray --processes 2": "processes 2",
    "reproduce chapter --address here": "address 'here'",
    "reproduce chapter --only exact --out image.png": "image.png",
    "reproduce chapter --only trained --data nosuch": "data 'nosuch'",
    "bench --rounds 0": "--rounds 0",
    "bench --config absent.yaml": "--config 'absent.yaml'",
    "bench --model resnet9_cifar": "depth 9",
    "report": "DIRECTORIES",
    "report absent": "'absent'",
    "report folder": "'folder'",
    "report image.png": "'image.png'",
    "report run --out folder": "--out 'folder'",
    "report run --out run/config.yaml": "--out 'run/config.yaml'",
    "report run --out image.png/page.html": "--out 'image.png/page.html'",
    "models nosuch*": "'nosuch*'",
    "models [": "'['",
    "models ../../etc": "'../../etc'",
    "models resnet999998_cifar": "stage_units",
    "models wide_resnet28_0_cifar": "widen 0.0",
    "models wide_resnet50_999999999999": "'wide_resnet50_999999999999'",
    "export run": "--format",
    "export run --format safetensors": "--out",
    "export run --format onxx --out x": "format 'onxx'",
    "export run --format safetensors --out old.json": "old.json",
    "export run --format safetensors --out folder": "folder",
    "export run --format safetensors --out absent/x": "absent/x",
    "export run --format safetensors --out x --fold": "fold true",
    "export run --format safetensors --out x --opset 18": "opset 18",
    "export absent --format safetensors --out x": "absent",
}


def argv_of(line: str) -> list[str]:
    """The tokens of a line; a train or bench that is not told otherwise is a small one."""
    verb, *rest = line.split(" ")
    small = verb in ("train", "bench") and "--resume" not in rest and rest != ["--lr"]
    return [verb, *([*GIVEN[verb]] if small else []), *rest]


@pytest.mark.parametrize("line", BAD_VALUES, ids=lambda line: line[:60].replace("\0", "NUL"))
def test_a_value_that_breaks_a_rule_is_named(place, line):
    refused(argv_of(line), BAD_VALUES[line])


@pytest.mark.parametrize("verb", GIVEN)
def test_an_empty_argument_stands_for_nothing(place, verb):
    positionals = [flag for group in cli.VERBS[verb].flags.values() for flag in group if flag.positional]
    for number, flag in enumerate(positionals):
        argv = [verb, *GIVEN[verb]]
        argv[1 + number : 2 + number] = [""]
        refused(argv, flag.spelling, code=2)


@settings(max_examples=60)
@given(verb=st.sampled_from(list(GIVEN)), name=st.text(min_size=1), value=st.text())
def test_any_unknown_flag_is_named(verb, name, value):
    spelling = f"--{name}".partition("=")[0].replace("_", "-")
    flags = [flag.spelling for group in cli.VERBS[verb].flags.values() for flag in group]
    assume(spelling not in (*flags, "--", "--help"))
    code, err = outcome([verb, *GIVEN[verb], f"--{name}", value])
    assert "unknown; nearest: " in stated(code, err, [verb, name, value]) and code == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_refused_before_the_work(place):
    (place / "folder").chmod(0o500)
    refused([*TRAIN, "--json", "folder/x.json"], "--json 'folder/x.json'", code=2)
    refused([*TRAIN, "--out", "folder/run"], "out folder/run", code=2)


SUBPROCESS = [
    "train --lr nan",
    "train --out run",
    "predict run old.json",
    "models resnet9_cifar",
]


@pytest.mark.parametrize("line", SUBPROCESS)
def test_the_process_says_and_exits_alike(place, line):
    argv = argv_of(line)
    done = subprocess.run([sys.executable, "-m", "verydeep", *argv], capture_output=True, text=True, timeout=120)
    line = stated(done.returncode, done.stderr, argv)
    assert line == refused(argv)


def test_debug_adds_the_traceback(place):
    code, err = outcome(["evaluate", "absent", "--debug"])
    assert code == 2 and err.startswith("Traceback") and err.rstrip().splitlines()[-1].startswith("verydeep: error: ")


INPUTS = [
    *((verb, flag.spelling, text) for verb, flag in OF_FLAGS for text in malformed(flag)),
    *BAD_VALUES,
]
