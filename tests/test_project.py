"""The project's files agree: README with .ci/run, versions, flags and their help."""

import dataclasses
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import verydeep
from verydeep import cli
from verydeep.config import RunConfig
from verydeep.flags import GROUPS, config_flags

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SHELL_LINES = [line for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
VERB_LINES = [line for line in SHELL_LINES if line.startswith("verydeep ")]
PYTHON = "".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))


def test_first_two_commands_stand_alone():
    train, tests = SHELL_LINES[:2]
    for line in (train, tests):
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install -q -e ")
    assert train.endswith("&& .venv/bin/verydeep train")
    assert "-m pytest" in tests


@pytest.mark.skipif(os.name != "posix", reason="needs bash")
def test_ci_runs_the_readme_test_command():
    done = subprocess.run(["bash", ".ci/run", "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    create, install, tests = done.stdout.splitlines()
    environment = create.removeprefix("python3 -m venv ")
    assert " && ".join([create, install, tests]).replace(environment, ".venv") == SHELL_LINES[1]
    assert not Path(environment).is_relative_to(ROOT)


def test_ci_run_is_executable():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("line", VERB_LINES)
def test_readme_commands_parse(work, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "preact164").mkdir(parents=True)
    (tmp_path / "runs" / "preact164" / "config.yaml").write_text(yaml.safe_dump(RunConfig().resolved().to_dict()))
    assert cli.main(shlex.split(line)[1:]) == 0
    assert work.calls


def test_imagenet_commands_parse(work, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "imagenet.md").read_text(encoding="utf-8").replace("\\\n", "")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    commands = [line for line in lines if line.startswith(("torchrun", "verydeep"))]
    for line in commands:
        assert cli.main(shlex.split(line.partition("verydeep ")[2])) == 0, line
    configs = [args[0].resolved() for name, args, _ in work.calls if name == "train"]
    assert [(config.augmentation, config.color_jitter, config.epochs) for config in configs] == [
        ("scale", "pca", 90),
        ("scale+aspect", "pca", 90),
        ("scale", "pca", 90),  # where reproduce looks for it
    ]
    crops = [(options["image_size"], options["resize"]) for name, _, options in work.calls if name == "evaluate_run"]
    assert crops == [(None, None), (320, 320)]


def test_readme_shows_every_verb():
    assert {line.split()[1] for line in VERB_LINES} == set(cli.VERBS)


def test_readme_python_runs(tmp_path):
    subprocess.run([sys.executable, "-c", PYTHON], cwd=tmp_path, check=True, timeout=300)
    assert (tmp_path / "runs" / "digits" / "result.json").is_file()


def test_versions_agree():
    assert PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "verydeep/__init__.py"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == verydeep.__version__


def test_every_field_of_run_config_has_a_flag_and_help():
    groups = config_flags()
    assert list(groups) == list(GROUPS.values())
    flags = [flag for group in groups.values() for flag in group]
    assert [flag.name for flag in flags] == [field.name for field in dataclasses.fields(RunConfig)]
    for flag in flags:
        assert len(flag.help.split(";")[0]) > 5, flag.name


def test_both_readmes_have_the_same_commands():
    chinese = (ROOT / "README.zh.md").read_text(encoding="utf-8")
    code = r"```(?:sh|python)\n(.*?)```"
    assert re.findall(code, chinese, re.DOTALL) == re.findall(code, README, re.DOTALL)
