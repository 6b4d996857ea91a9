"""Charts: what the rows say is what is drawn, told apart by more than colour, in either light."""

import itertools
import math
import re
from xml.etree import ElementTree

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.examples import CHARTS, bars, dots, histograms, lines, shared, surface
from verydeep.errors import UsageError
from verydeep.report import chart as charts
from verydeep.report import draw, theme
from verydeep.report.chart.axis import decades, told_apart
from verydeep.report.chart.histogram import bin_edges, quantiles

SVG = "{http://www.w3.org/2000/svg}"


def marks(svg: str, kind: str) -> list[ElementTree.Element]:
    """The items of a kind of mark that are data, not axes or legends."""
    root = ElementTree.fromstring(svg)
    groups = [group for group in root.iter(f"{SVG}g") if f"mark-{kind} role-mark" in group.get("class", "")]
    return [item for group in groups for item in group if item.get("d") or item.get("transform") or item.text]


def layer(chart: charts.Chart, index: int) -> list[dict]:
    """The rows of a layer."""
    spec = chart.spec["layer"][index]
    return spec.get("data", chart.spec.get("data"))["values"]


def test_every_constructor_has_an_example():
    constructors = {name for name in vars(charts) if name.endswith("_chart")} - {"altair_chart"}
    assert {f"{kind}_chart" for kind in CHARTS} - {"surface_chart"} == constructors


@pytest.mark.parametrize("kind", CHARTS)
def test_is_valid_and_comes_back_from_json(kind):
    chart = CHARTS[kind]()
    alt.Chart.from_dict(chart.spec, validate=True)
    assert charts.Chart.from_dict(chart.to_dict()) == chart
    assert "config" not in chart.spec
    assert draw.svg(chart) == draw.svg(CHARTS[kind]())


@pytest.mark.parametrize("kind", CHARTS)
def test_has_tooltips_and_no_wider_than_its_container(kind):
    spec = CHARTS[kind]().spec
    assert '"tooltip"' in str(spec).replace("'", '"')
    assert spec.get("width") == "container" or spec["usermeta"]["panels"] >= 1


def test_lines():
    svg = draw.svg(lines(published=[{"block": 2, "variance": 4.0, "net": "plain"}]))
    assert len(marks(svg, "line")) == 2
    assert len(marks(svg, "symbol")) == 6 + 1
    assert "plain" in svg and "scaled" in svg


def test_a_line_of_many_points_has_no_markers_but_tooltips():
    rows = [{"x": x, "y": x} for x in range(100)]
    chart = charts.line_chart(rows, name="a", title="A", x="x", y="y")
    opacities = {point.get("opacity") for point in marks(draw.svg(chart), "symbol")}
    assert len(marks(draw.svg(chart), "line")) == 1 and opacities == {"0"}


def test_band_is_shaded():
    rows = [{"x": x, "y": x, "low": x - 1, "high": x + 1} for x in range(4)]
    chart = charts.line_chart(rows, name="a", title="A", x="x", y="y", band=("low", "high"))
    assert len(marks(draw.svg(chart), "area")) == 1


@pytest.mark.parametrize(
    ("value", "log"), [(0.0, True), (-1.0, True), (math.nan, False), (math.inf, False), (None, True)]
)
def test_what_has_no_place_is_left_out_and_said(value, log):
    rows = [{"x": 1, "y": 1.0}, {"x": 2, "y": value}, {"x": 3, "y": 3.0}]
    chart = charts.line_chart(rows, name="a", title="A", x="x", y="y", log_y=log, caption="One run.")
    assert len(marks(draw.svg(chart), "symbol")) == 2
    assert chart.caption.startswith("One run. Not drawn: 1 of 3 points")


def test_columns_may_have_any_name():
    rows = [{"a.b[0]": x, "lr: 'c'": x, "x": "one"} for x in range(3)]
    chart = charts.line_chart(rows, name="a", title="A", x="a.b[0]", y="lr: 'c'", series="x")
    assert len(marks(draw.svg(chart), "symbol")) == 3


def test_series_and_categories_may_be_numbers():
    rows = [{"depth": depth, "x": x, "error": 6.0 + x} for depth in (20, 110) for x in range(2)]
    line = draw.svg(charts.line_chart(rows, name="a", title="A", x="x", y="error", series="depth"))
    assert {item.get("stroke") for item in marks(line, "line")} == set(theme.SERIES[:2])
    dot = charts.dot_chart(rows, name="a", title="A", category="depth", value="error", published={20: 7.0})
    assert len(marks(draw.svg(dot), "symbol")) == 4 + 1 and draw.svg(dot).count(">20</text>") == 1


def test_histogram_counts_every_draw():
    chart = histograms()
    bar = layer(chart, 1)
    for series in ("shallow", "deep"):
        assert sum(row["n"] for row in bar if row["series"] == series) == 100
    svg = draw.svg(chart)
    assert len(marks(svg, "rect")) == len(bar)
    assert [row["which"] for row in layer(chart, 2) + layer(chart, 3)] == ["median", "median", "published"]
    assert layer(chart, 3)[0]["x"] == 0.6 and "published 0.6" in svg


@pytest.mark.parametrize("draws", [[], [0.5], [0.5, 0.5], [math.nan]])
def test_histogram_of_next_to_nothing(draws):
    assert "a</text>" in draw.svg(histograms_of({"a": draws, "b": [1.0, 2.0]}))


def histograms_of(draws) -> charts.Chart:
    return charts.histogram_chart(draws, name="a", title="A", x_title="x", published={"a": 0.7})


def test_histogram_of_powers():
    chart = charts.histogram_chart(
        {"plain": [10.0**k for k in range(1, 16)]}, name="a", title="A", x_title="variance", log_x=True
    )
    svg = draw.svg(chart)
    assert "10¹²" in svg and sum(row["n"] for row in layer(chart, 1)) == 15


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 50))
def test_bins_hold_all_values(values, bins):
    edges = bin_edges(values, bins, log=False)
    assert len(edges) == bins + 1 and edges == sorted(edges)
    assert edges[0] <= min(values) and max(values) <= edges[-1] + 1e-9 * abs(edges[-1]) + 1e-9


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30), st.floats(0.5, 1))
def test_quantiles_are_numpys(values, central):
    numpy = pytest.importorskip("numpy")
    low, high = quantiles(sorted(values), central)
    expected = numpy.quantile(values, [(1 - central) / 2, (1 + central) / 2])
    assert [low, high] == pytest.approx(list(expected), rel=1e-9, abs=1e-3)


def test_bars_stand_side_by_side_and_failures_are_words():
    chart = bars()
    svg = draw.svg(chart)
    assert len(marks(svg, "rect")) == 4  # two of the first, ours of the second, the paper's of the third
    assert re.findall(r">(6\.61|6\.7|fail|21\.5|8\.7)<", svg) == ["6.61", "6.7", "fail", "21.5", "8.7"]
    assert len(marks(svg, "rule")) == 1
    assert "published" in svg and "measured" in svg


def test_bars_start_at_zero():
    domain = bars().spec["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert domain[0] == 0 and domain[1] > 21.5


def test_dots():
    svg = draw.svg(dots())
    assert len(marks(svg, "symbol")) == 6 + 1
    assert len(marks(svg, "rect")) == 2  # the ticks of two medians
    medians = layer(dots(), 0)
    assert [(row["category"], row["value"], row["n"]) for row in medians] == [("original", 6.1, 3), ("full", 5.1, 3)]


def test_a_category_whose_seeds_all_diverged_keeps_its_row():
    rows = [{"c": "a", "v": 1.0}, {"c": "b", "v": math.nan}]
    chart = charts.dot_chart(rows, name="a", title="A", category="c", value="v")
    assert ">b</text>" in draw.svg(chart) and "Not drawn: 1 of 2" in chart.caption


def test_surface_has_a_cell_a_row_in_each_panel():
    svg = draw.svg(surface())
    assert len(marks(svg, "rect")) == 2 * 15 * 15
    assert ">plain</text>" in svg and ">residual</text>" in svg


def test_grid_of_words():
    svg = draw.svg(shared())
    assert len(marks(svg, "rect")) == 24
    fills = [cell.get("fill") for cell in marks(svg, "rect")]
    assert fills.count(theme.CELLS[1]) == 4 and fills.count(theme.CELLS[0]) == 20
    assert [item.text for item in marks(svg, "text") if item.text] == ["x"]


def test_too_many_words_are_refused():
    rows = [{"x": k, "y": 0, "v": f"word {k}"} for k in range(9)]
    with pytest.raises(ValueError, match="9 different words"):
        charts.grid_chart(rows, name="a", title="A", x="x", y="y", value="v")


@pytest.mark.parametrize("count", [2, 7, 8, 15])
def test_series_differ_by_more_than_colour(count):
    looks = told_apart([f"series {index}" for index in range(count)])
    ranges = [looks[channel].to_dict()["scale"]["range"] for channel in ("color", "strokeDash", "shape")]
    assert len(set(map(str, zip(*ranges, strict=True)))) == count
    for one, other in itertools.combinations(zip(*ranges, strict=True), 2):
        assert (one[1], one[2]) != (other[1], other[2]) or count > len(theme.SHAPES)


@given(st.floats(1e-12, 1e12), st.floats(1, 1e18))
def test_decades_are_few_and_inside(low, ratio):
    ticks = decades([low, low * ratio])
    assert len(ticks) <= 8 and len(ticks) != 1
    assert all(low * (1 - 1e-6) <= tick <= low * ratio * (1 + 1e-6) for tick in ticks)
    assert len(ticks) > 1 or ratio < 1e3


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", ".hidden", "a" * 101, 'a"'])
def test_a_name_that_is_no_file_is_refused(name):
    with pytest.raises(UsageError, match="must be a file name"):
        lines(name=name)


@pytest.mark.parametrize("part", ["name", "title", "caption", "spec"])
def test_a_stored_chart_that_lacks_a_part_is_refused(part):
    values = lines().to_dict()
    del values[part]
    with pytest.raises(UsageError, match=f"{part} must be a"):
        charts.Chart.from_dict(values)


@pytest.mark.parametrize(
    "spec",
    [
        {"mark": "nothing of this kind", "data": {"values": [{}]}},
        {
            "data": {"url": "http://127.0.0.1:9/data.csv"},
            "mark": "point",
            "encoding": {"x": {"field": "a", "type": "nominal"}},
        },
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(spec):
    with pytest.raises(UsageError, match="chart fig: cannot be drawn"):
        draw.svg(charts.Chart("fig", "Fig", "", spec))


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_of_figures(dark):
    def shown(colour):
        return theme.DARK[colour] if dark else colour

    paper = theme.DARK_PAPER if dark else theme.PAPER
    assert min(contrast(shown(colour), paper) for colour in theme.SERIES) >= 3
    assert min(contrast(shown(colour), paper) for colour in (theme.INK, theme.MUTED)) >= 4.5
    assert min(contrast(shown(theme.INK), shown(cell)) for cell in theme.CELLS) >= 4.5


@pytest.mark.parametrize("kind", [kind for kind in CHARTS if kind != "surface"])
def test_every_colour_has_one_in_the_dark(kind):
    colours = set(re.findall(r'(?:fill|stroke)="(#[0-9a-fA-F]+)"', draw.svg(CHARTS[kind]())))
    assert colours and colours <= set(theme.DARK)
