"""The page of what runs and reproductions left in their directories, made again without measuring anything."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verydeep.errors import UsageError
from verydeep.report.chart import line_chart
from verydeep.report.page import render_page
from verydeep.report.section import Section
from verydeep.training.rundir import CONFIG, METRICS, RESULT, read_config

SECTIONS = "sections.json"


@dataclass(frozen=True)
class Part:
    """What one directory adds to a page.

    Args:    facts: for the foot of the page
    """

    title: str
    intro: str
    sections: Sequence[Section]
    facts: dict[str, Any]


def write_page(directories: Sequence[Path], out: Path) -> None:
    """One page of all directories: of reproductions, with their claims and figures, and of runs, with their curves.

    Raises:  UsageError: if a directory holds neither.
    """
    parts = [read_part(directory) for directory in directories]
    title = parts[0].title if len(parts) == 1 else "Results"
    intro = "\n\n".join(part.intro for part in parts if part.intro)
    facts = parts[0].facts if len(parts) == 1 else {str(d): p.facts for d, p in zip(directories, parts, strict=True)}
    render_page(title, intro, [section for part in parts for section in part.sections], out, facts)


def read_part(directory: Path) -> Part:
    """What a directory holds.

    Raises:  UsageError: if it is neither a reproduction's nor a run's, or its files are damaged.
    """
    if (directory / SECTIONS).exists():
        return _reproduction(directory)
    if (directory / CONFIG).exists():
        return _run(directory)
    raise UsageError(f"report {str(directory)!r}: neither a run ({CONFIG}) nor a reproduction ({SECTIONS}) is there")


def _reproduction(directory: Path) -> Part:
    stored = _json(directory / SECTIONS)
    values = _json(directory / f"{stored['name']}.json")
    facts = {
        name: values[name]
        for name in ("command", "versions", "seconds", "seeds", "scale", "data", "image_size", "max_images")
    }
    return Part(stored["title"], stored["intro"], [Section.from_dict(s) for s in stored["sections"]], facts)


def _run(directory: Path) -> Part:
    """A run as a section: training and test curves, and what it ended with."""
    config = read_config(directory)
    name = directory.resolve().name
    try:
        lines = [json.loads(line) for line in (directory / METRICS).read_text().splitlines()]
        curves = {
            key: [
                {"step": line["step"], key: line[key], "images": line["kind"]}
                for line in lines
                if line["kind"] in ("train", "validation", "test") and line[key] is not None
            ]
            for key in ("loss", "error_percent")
        }
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(f"report {str(directory)!r}: {METRICS} cannot be read ({error})") from None
    titles = {"loss": "Loss", "error_percent": "Error, %"}
    charts = [
        line_chart(
            rows,
            name=f"{name}-{key.split('_')[0]}",
            title=titles[key],
            x="step",
            y=key,
            y_title=titles[key].lower(),
            series="images",
            caption="Training values are means over the steps of a log line, with augmentation.",
        )
        for key, rows in curves.items()
    ]
    result = _json(directory / RESULT) if (directory / RESULT).exists() else {}
    measured = result.get("test_error_percent")
    text = "Not finished." if not result else "No test images." if measured is None else f"Test error {measured:.2f} %."
    kept = ("command", "versions", "seconds", "steps", "num_parameters", "device", "processes", "threads")
    facts = {key: result[key] for key in kept if key in result} or {"steps": len(curves["loss"])}
    title = f"{config.model} on {config.data}, seed {config.seed}"
    return Part(title, "", [Section(name, title, text, charts=charts, settings=f"protocol {config.protocol}")], facts)


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"report {str(path.parent)!r}: {path.name} cannot be read ({error})") from None
