"""A chart as SVG and PNG, without a browser and without a network."""

import copy
import functools
import re
import textwrap
from typing import Any

import vl_convert

from verydeep.errors import UsageError
from verydeep.report.chart.figure import Chart
from verydeep.report.theme import CONFIG, PAPER

VEGA_LITE = "6.4"  # as Altair writes it; what the page's own script reads too
WIDTH = 680  # pixels, where a chart asks for its container's


def svg(chart: Chart, *, titled: bool = False) -> str:
    """The chart, as an image that stands in a page, or with title, caption and paper as one that stands alone.

    Raises:  UsageError: if the specification is none, or asks for data from elsewhere.
    """
    spec, config = copy.deepcopy(chart.spec), dict(CONFIG)
    if spec.get("width") == "container":
        spec["width"] = WIDTH
    if titled:
        config["background"] = PAPER
        config["padding"] = 12
        spec["title"] = {"text": _wrapped(chart.title, 75), "subtitle": _wrapped(chart.caption, 105)}
    try:
        text = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=config, allowed_base_urls=[])
    except ValueError as error:
        raise UsageError(f"chart {chart.name}: cannot be drawn ({_reason(error)})") from None
    return _own_ids(text, f"{chart.name}-{'alone' if titled else 'still'}-")


def png(alone: str) -> bytes:
    """An SVG as PNG, two pixels for one."""
    return vl_convert.svg_to_png(alone, scale=2)


@functools.cache
def javascript() -> str:
    """Vega, Vega-Lite and vega-embed as one script, from the installed package."""
    return vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]


def _reason(error: Any) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "Error" in line), lines[0] if lines else "no reason given")[:200]


def _own_ids(text: str, prefix: str) -> str:
    """Ids of clips and gradients by order, not by a counter over all charts: unique in a page, and repeatable."""
    names = dict.fromkeys(re.findall(r'\bid="([^"]+)"', text))
    for number, name in enumerate(names):
        text = text.replace(f'id="{name}"', f'id="{prefix}{number}"').replace(
            f"url(#{name})", f"url(#{prefix}{number})"
        )
    return text
