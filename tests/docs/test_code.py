"""Every block of code of README and the site is run, or, where it cannot be here, parsed by the command line."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.page import PAGES, ROOT, blocks, name
from verydeep import cli
from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.experiments.experiment import Setting
from verydeep.experiments.he2016.setting import training
from verydeep.experiments.training import identity

# Languages of blocks. `bash` is a script for a cluster and `text` no code; a directive makes its content at the build.
RUN, NOT_CODE = {"sh", "python", "pycon"}, {"bash", "text"}
DIRECTIVES = {"toctree", "eval-rst", "flags", "verbs", "protocols", "rules", "cells", "measured"}

# Shell lines that are neither run nor parsed, by their beginning: they make an environment or look at other tools.
NOT_RUN = (
    "python3 -m venv",  # installs; .ci/run does it
    "source .venv/bin/activate",
    "pip install",
    "ruff ",
    "mypy",
    "pytest",
    "python -m sphinx",  # tests/docs/test_site.py builds the site
)
# Pages whose shell lines are parsed, not run: they take minutes to weeks, with data that are not here.
PARSED = {"docs/guides/researcher.md", "docs/diagnose.md", "docs/reproduce.md", "docs/imagenet.md"}
# Lines of other pages that are parsed, not run.
LONG = {
    "verydeep train --model preact_resnet1001_cifar --data cifar10 --memory-budget 2GB --out runs/thousand",
    "verydeep reproduce chapter --only stochastic",
    "verydeep reproduce chapter",
    "verydeep train --model resnet50 --stride-on 3x3 --data folder:photos --finetune resnet50.pth --freeze stem",
}
BY_OTHERS = {"README.md", "README.zh.md"}  # run and parsed in tests/test_project.py

RUNNABLE = [
    page
    for page in PAGES
    if name(page) not in BY_OTHERS and any(b.language in RUN for b in blocks(page.read_text(encoding="utf-8")))
]


def commands(page: Path) -> list[str]:
    shells = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "sh"]
    return [line for block in shells for line in block.commands() if not line.startswith(NOT_RUN)]


def left_out(page: Path) -> list[str]:
    """The lines of a page that are not run."""
    shells = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language == "sh"]
    lines = [line for block in shells for line in block.commands()]
    return [line for line in lines if line.startswith(NOT_RUN) or line in LONG or name(page) in PARSED]


def run_page(page: Path, directory: Path, *skipped: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "docs" / "run_page.py"), str(page), *skipped]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_page_runs(tmp_path, page):
    done = run_page(page, tmp_path, *left_out(page))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


PARSED_LINES = [(page, line) for page in PAGES for line in commands(page) if line in LONG or name(page) in PARSED]


@pytest.mark.parametrize(
    ("page", "line"), PARSED_LINES, ids=lambda value: name(value) if isinstance(value, Path) else ""
)
def test_line_parses(work, tmp_path, monkeypatch, page, line):
    monkeypatch.chdir(tmp_path)
    for run in ("runs/preact164", "runs/preact_resnet200"):
        Path(run).mkdir(parents=True)
        Path(run, "config.yaml").write_text(yaml.safe_dump(RunConfig().resolved().to_dict()))
    assert line.startswith(("verydeep ", "torchrun ")), f"neither run nor parsed: {line}"
    assert cli.main(shlex.split(line.partition("verydeep ")[2], comments=True)) == 0
    assert work.calls


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_known(page):
    for block in blocks(page.read_text(encoding="utf-8")):
        directive = block.language.strip("{}") if block.language.startswith("{") else None
        assert block.language in RUN | NOT_CODE or directive in DIRECTIVES, f"{name(page)}:{block.line}"


def test_exceptions_are_needed():
    lines = [line for page in PAGES for line in commands(page)]
    assert set(lines) >= LONG
    assert {name(page) for page in PAGES} >= PARSED | BY_OTHERS


@pytest.mark.parametrize("page", [page for page in PAGES if name(page) in BY_OTHERS], ids=name)
def test_readme_has_no_line_of_another_kind(page):
    assert all(line.startswith("verydeep ") for line in commands(page))


@pytest.mark.parametrize(
    "block",
    [
        "```python\nimport verydeep\n\nverydeep.create_modl('resnet20_cifar')\n```\n",
        "```pycon\n>>> 1 + 1\n3\n```\n",
        "```pycon\n>>> undefined\n```\n",
        "```sh\nverydeep models --nonsense 1\n```\n",
        "```sh\nls no-such-file\n```\n",
        "```python\n# broken.py\nraise ValueError\n```\n\n```python\nimport broken\n```\n",
    ],
)
def test_a_broken_block_breaks_its_page(tmp_path, block):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n" + block)
    done = run_page(page, tmp_path)
    assert done.returncode != 0
    assert "page.md:8" in done.stdout  # it came so far


def test_a_page_is_run_in_one_process(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# m.py\ny = 2\n```\n```python\nfrom m import y\n```\n"
        "```pycon\n>>> y\n2\n>>> z = y + 1\n```\n"
        "```sh\nfalse\nverydeep models resnet20_cifar \\\n    --json m.json\n```\n"
        "```python\nopen('done', 'w').write(str(z))\n```\n"
    )
    done = run_page(page, tmp_path, "false")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "done").read_text() == "3"
    assert json.loads((tmp_path / "m.json").read_text())["models"][0]["depth"] == 20


def test_a_run_by_torchrun_is_taken_up_by_table_5(monkeypatch):
    (line,) = (line for line in commands(ROOT / "docs" / "imagenet.md") if "--out reproduced" in line)
    configs: list[RunConfig] = []

    def train(config: RunConfig) -> None:
        configs.append(config)
        raise UsageError("not here")

    monkeypatch.setattr("verydeep.training.loop.train", train)
    cli.main(shlex.split(line.partition("verydeep ")[2]))
    (config,), setting = configs, Setting("paper", data="folder:/data/imagenet")
    name, _, seed = Path(config.out).name.rpartition("-s")
    assert Path(config.out).parent == Path("reproduced/he2016/runs") / str(setting) and config.seed == int(seed)
    training(name, setting).check(identity(config.resolved()), Path(config.out))


def test_a_wrong_line_does_not_parse(work):
    assert cli.main(shlex.split("train --modle resnet20_cifar")) == 2
    assert not work.calls
