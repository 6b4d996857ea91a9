"""Colours, dashes and shapes of the figures, in light and in dark.

Figures are drawn in the light colours. A page in the dark maps each of them by CSS, so that nothing is drawn twice.
"""

from typing import Any

INK, MUTED, PALE, GRID = "#1f2328", "#57606a", "#9aa4ae", "#d8dee4"
# Okabe and Ito's hues, each dark enough for white paper; neighbours differ in lightness as well.
SERIES = ("#0072b2", "#d55e00", "#00795a", "#a8487f", "#8a6d00", "#4b3fa8", "#5f6b76")
# Words in a grid: pale cells that ink can be written on, then strong ones.
CELLS = (GRID, "#7cc0ec", "#f2a56b", "#8fd3b6", "#dca3c4")
DARK = {
    INK: "#e8eaed",
    MUTED: "#a5adb6",
    PALE: "#737d87",
    GRID: "#363c44",
    "#0072b2": "#5cb8f0",
    "#d55e00": "#ff8f4d",
    "#00795a": "#35cfa2",
    "#a8487f": "#ec9fcb",
    "#8a6d00": "#e3c552",
    "#4b3fa8": "#a9a1ff",
    "#5f6b76": "#c3c9cf",
    "#7cc0ec": "#1f6aa3",
    "#f2a56b": "#a3531a",
    "#8fd3b6": "#1d7257",
    "#dca3c4": "#8a4470",
}
PAPER, DARK_PAPER = "#ffffff", "#15181c"
# Series that differ in colour differ in dash and shape too.
DASHES = ([1, 0], [7, 3], [2, 2], [8, 3, 2, 3], [12, 3], [4, 4], [10, 2, 2, 2, 2, 2])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right")
# DejaVu has the superscripts of powers of ten; vl-convert brings Liberation along.
FONT = "DejaVu Sans, Liberation Sans, Arial, Helvetica, sans-serif"

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "aria": False,  # one label for the figure, in the page; thousands of marks would each have their own
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titlePadding": 8,
        "gridColor": GRID,
        "domainColor": MUTED,
        "tickColor": MUTED,
        "labelLimit": 150,
        "labelOverlap": True,
    },
    "axisX": {"grid": False, "labelFlush": False},
    "legend": {
        "orient": "top",
        "labelColor": INK,
        "titleColor": INK,
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "symbolStrokeWidth": 2,
        "symbolSize": 110,
        "labelLimit": 260,
    },
    "header": {"labelColor": INK, "labelFontSize": 13, "titleColor": INK},
    "title": {
        "color": INK,
        "subtitleColor": MUTED,
        "anchor": "start",
        "frame": "bounds",
        "fontSize": 16,
        "subtitleFontSize": 12,
        "subtitleLineHeight": 16,
        "offset": 14,
    },
}


def dark_css() -> str:
    """Rules that turn a figure's light colours into the dark ones."""
    return "\n".join(
        f'svg [{kind}="{light}"] {{ {kind}: {dark}; }}' for light, dark in DARK.items() for kind in ("fill", "stroke")
    )
