"""The page of what runs and reproductions left in their directories, made again without measuring anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verydeep.errors import UsageError
from verydeep.experiments.sources import SOURCES
from verydeep.files import parse_json
from verydeep.report.chart import line_chart
from verydeep.report.page import render_page
from verydeep.report.section import Section
from verydeep.training.rundir import CONFIG, METRICS, read_config, read_metrics, read_result

SECTIONS = ".sections.json"  # NAME.sections.json, beside NAME.json


def sections_file(directory: Path, name: str) -> Path:
    """The file from which the page of a reproduction is made again."""
    return directory / f"{name}{SECTIONS}"


@dataclass(frozen=True)
class Part:
    """What one run, or one part of a work, adds to a page.

    Args:    name: of the part; the directory of a run
             facts: for the foot of the page
    """

    name: str
    title: str
    intro: str
    sections: Sequence[Section]
    facts: dict[str, Any]


def write_page(directories: Sequence[Path], out: Path) -> None:
    """One page of all directories: of reproductions, with their claims and figures, and of runs, with their curves.

    Raises:  UsageError: if a directory holds neither.
    """
    parts = [part for directory in directories for part in read_parts(directory)]
    titles, intros = (list(dict.fromkeys(texts)) for texts in zip(*((p.title, p.intro) for p in parts), strict=True))
    title = titles[0] if len(titles) == 1 else "Results"
    intro = "\n\n".join(intro for intro in intros if intro)
    facts = parts[0].facts if len(parts) == 1 else {part.name: part.facts for part in parts}
    render_page(title, intro, [section for part in parts for section in part.sections], out, facts)


def read_parts(directory: Path) -> list[Part]:
    """What a directory holds, a work's parts in its order.

    Raises:  UsageError: if it is neither a reproduction's nor a run's, or its files are damaged.
    """
    files = sorted(directory.glob(f"*{SECTIONS}"), key=_place)
    if files:
        return [_reproduction(file) for file in files]
    if (directory / CONFIG).exists():
        return [_run(directory)]
    raise UsageError(
        f"report {str(directory)!r}: neither a run ({CONFIG}) nor a reproduction (NAME{SECTIONS}) is there"
    )


def _place(file: Path) -> tuple[int, str]:
    """Where a part stands in its work."""
    name, names = file.name.removesuffix(SECTIONS), list(SOURCES)
    return names.index(name) if name in names else len(names), name


def _reproduction(file: Path) -> Part:
    stored, values = _json(file), _json(file.with_name(f"{file.name.removesuffix(SECTIONS)}.json"))
    names = ("command", "versions", "seconds", "seeds", "scale", "data", "image_size", "max_images")
    try:
        facts = {name: values[name] for name in names}
        sections = [Section.from_dict(section) for section in stored["sections"]]
        return Part(stored["name"], stored["title"], stored["intro"], sections, facts)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"report {str(file.parent)!r}: {file.name} is not as verydeep wrote it ({error!r})") from None


def _run(directory: Path) -> Part:
    """A run as a section: training and test curves, and what it ended with."""
    config = read_config(directory)
    name = _file_name(directory.resolve().name)
    lines = [line for line in read_metrics(directory) if line["kind"] in ("train", "validation", "test")]
    curves = {
        key: [
            {"step": line["step"], key: value, "images": line["kind"]}
            for line in lines
            if (value := _measured(line, key, directory)) is not None
        ]
        for key in ("loss", "error_percent")
    }
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
    result = read_result(directory) or {}
    measured = result.get("test_error_percent")
    text = "Not finished." if not result else "No test images." if measured is None else f"Test error {measured:.2f} %."
    kept = ("command", "versions", "seconds", "steps", "num_parameters", "device", "processes", "threads")
    facts = {key: result[key] for key in kept if key in result} or {"steps": len(curves["loss"])}
    title = f"{config.model} on {config.data}, seed {config.seed}"
    return Part(
        str(directory),
        title,
        "",
        [Section(name, title, text, charts=charts, settings=f"protocol {config.protocol}")],
        facts,
    )


def _file_name(text: str) -> str:
    """A directory's name as a figure may be called: letters, digits and few signs of ASCII.

    >>> _file_name("my runs 大")
    'my-runs-x5927'
    """
    plain = (c if c.isascii() and (c.isalnum() or c in "._+-") else "-" if c == " " else f"x{ord(c):x}" for c in text)
    return "".join(plain)[:80].lstrip("._+-") or "run"


def _measured(line: dict[str, Any], key: str, directory: Path) -> float | None:
    """A number of a line of the metrics; None where it was not finite."""
    value = line.get(key, "absent")
    if value is not None and not isinstance(value, (int, float)):
        raise UsageError(f"report {str(directory)!r}: {METRICS}: {key} {value!r} at step {line['step']}: no number")
    return value


def _json(path: Path) -> Any:
    try:
        return parse_json(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"report {str(path.parent)!r}: {path.name} cannot be read ({error})") from None
