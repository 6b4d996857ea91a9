"""The notebook runs, and its words say what it shows."""

import copy
import os
import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.docs.page import ROOT

PATH = ROOT / "docs" / "notebooks" / "diagnose.ipynb"
MOST_BYTES = 60_000


def printed(notebook: NotebookNode) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs if output.output_type == "stream")


def losses(notebook: NotebookNode) -> list[tuple[float, float]]:
    lines = re.findall(r"loss of the first ten steps ([\d.]+), of the last ten ([\d.]+)", printed(notebook))
    return [(float(first), float(last)) for first, last in lines]


def says_what_it_shows(notebook: NotebookNode) -> None:
    plain, halved, identity, preactivated = losses(notebook)
    assert plain == halved == (2.30, 2.30)
    assert preactivated[1] < 1.0 < identity[1] < 2.2
    text = printed(notebook)
    assert re.search(r" 1\. warning no-shortcut at 0\n", text)
    assert re.search(r" 1\. error +shortcut-not-identity at 1:add\n", text)
    assert text.count("(explained by no-shortcut)") == text.count("(explained by shortcut-not-identity)") == 2
    assert text.count("nothing found\n") == 2
    ratios = {name: re.findall(r"'([\d.e+-]+)'", line) for name, line in re.findall(r"(?m)^([\w-]+) (\{.*\})$", text)}
    assert all(float(ratio) < 1e-9 for ratio in ratios["plain"])
    assert all(float(ratio) > 0.9 for ratio in ratios["pre-activation"])


@pytest.fixture(scope="module")
def committed() -> NotebookNode:
    return nbformat.read(PATH, as_version=4)


@pytest.fixture(scope="module")
def executed(committed, tmp_path_factory) -> NotebookNode:
    notebook = copy.deepcopy(committed)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    folder = tmp_path_factory.mktemp("notebook")
    client = NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(folder)}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)  # the kernel imports this checkout
        client.execute()
    assert (folder / "plain.html").is_file()
    return notebook


def test_it_runs_and_says_what_it_shows(executed):
    says_what_it_shows(executed)


def test_what_is_committed_was_executed(committed):
    says_what_it_shows(committed)
    assert [cell.execution_count for cell in committed.cells if cell.cell_type == "code"] == list(
        range(1, 1 + sum(cell.cell_type == "code" for cell in committed.cells))
    )


def test_its_outputs_are_small(committed):
    assert PATH.stat().st_size < MOST_BYTES


def test_a_loss_that_does_not_fall_is_seen(committed):
    notebook = copy.deepcopy(committed)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = re.sub(r"of the last ten [\d.]+", "of the last ten 2.30", output["text"])
    with pytest.raises(AssertionError):
        says_what_it_shows(notebook)
