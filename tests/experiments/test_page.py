"""The page made again from what runs and reproductions left, without measuring."""

import shutil
from pathlib import Path

import pytest

from verydeep.config import RunConfig
from verydeep.errors import UsageError
from verydeep.experiments.job import Order
from verydeep.experiments.page import read_parts, write_page
from verydeep.experiments.reproduce import reproduce
from verydeep.training.loop import train


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch and a reproduction of section 5, with its figure."""
    root = tmp_path_factory.mktemp("left")
    train(RunConfig(model="preact_resnet8_cifar", epochs=1, out=root / "run"))
    reproduce("chapter", only=["exact-5"], out=root / "chapter")
    return root


def test_a_reproduction_writes_its_page(left: Path):
    page = (left / "chapter" / "chapter.html").read_text()
    assert "table-bn" in page and "fig11-3-cells" in page
    assert (left / "chapter" / "chapter_files" / "fig11-3-cells.svg").exists()


def test_one_page_of_a_run_and_a_reproduction_without_measuring(left: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Order, "carry_out", None)
    write_page([left / "run", left / "chapter"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "preact_resnet8_cifar on digits, seed 0" in page and "Test error" in page and "table-ln" in page
    assert {path.stem for path in (tmp_path / "page_files").glob("*.svg")} == {"run-loss", "run-error", "fig11-3-cells"}


def test_a_runs_curves_are_its_metrics(left: Path):
    ((section,),) = (part.sections for part in read_parts(left / "run"))
    assert [chart.name for chart in section.charts] == ["run-loss", "run-error"]
    assert '"test"' in str(section.to_dict()).replace("'", '"')


def test_a_directory_with_neither_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"neither a run \(config\.yaml\) nor a reproduction"):
        read_parts(tmp_path)
    (tmp_path / "chapter.sections.json").write_text("{")
    with pytest.raises(UsageError, match=r"sections\.json cannot be read"):
        read_parts(tmp_path)


def test_a_run_may_be_called_anything(left: Path, tmp_path: Path):
    (tmp_path / "my run 大").symlink_to(left / "run")
    ((section,),) = (part.sections for part in read_parts(tmp_path / "my run 大"))
    assert section.charts[0].name == "run-loss"  # a link is called as what it leads to
    shutil.copytree(left / "run", tmp_path / "1: 大")
    ((section,),) = (part.sections for part in read_parts(tmp_path / "1: 大"))
    assert section.charts[0].name == "1x3a-x5927-loss"


def test_a_run_that_was_killed_while_it_wrote_a_line_has_a_page(left: Path, tmp_path: Path):
    shutil.copytree(left / "run", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')
    ((section,),) = (part.sections for part in read_parts(tmp_path / "run"))
    assert section.text == "Not finished." and len(section.charts) == 2
