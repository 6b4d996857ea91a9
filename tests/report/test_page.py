"""The page as a file: whole, safe, small, the same each time, and in need of nothing beside it."""

import base64
import dataclasses
import hashlib
import itertools
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.report.examples import FACTS, HOSTILE, lines, sections, surface
from tests.report.test_chart import contrast
from verydeep.errors import RunError, UsageError
from verydeep.report.page import page_html, render_page
from verydeep.report.section import Section

VOID = {"meta", "img", "input", "br", "wbr", "link", "hr"}
LOADS = {"src", "srcset", "href", "xlink:href", "data", "poster", "action"}


class Page(HTMLParser):
    """Tags with attributes, text outside of scripts and styles, and whether tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{tag}: an attribute twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif self.open and self.open[-1] != "style":
            self.words.append(data)

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def text() -> str:
    return page_html("Title & more", "About.\n\nAnd more.", sections(), FACTS)


@pytest.fixture(scope="module")
def page(text) -> Page:
    return Page(text)


def test_tags_close_and_headings_do_not_jump(page):
    assert page.open == []
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("meta")[2]["content"] == "width=device-width, initial-scale=1"


def test_ids_are_unique_and_every_link_ends_somewhere(page):
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    pointed = [link["href"].removeprefix("#") for link in page.all("a")]
    for _, attributes in page.tags:
        for name in ("aria-labelledby", "aria-describedby", "for", "data-chart"):
            pointed += (attributes.get(name) or "").split()
    pointed += [name for _, attributes in page.tags for name in re.findall(r"url\(#([^)]+)\)", str(attributes))]
    assert len(pointed) > 30 and set(pointed) <= set(ids)


def test_nothing_is_loaded(page, text):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "image"), tag
        for name in LOADS & set(attributes):
            assert (attributes[name] or "").startswith("#"), (tag, attributes)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style and "@import" not in style
    policy = page.all("meta")[1]["content"]
    assert policy.startswith("default-src 'none';") and "http" not in policy and "unsafe-eval" not in policy


def test_hostile_words_stay_words(page, text):
    assert len(page.all("script")) == 1 + 7 + 2  # config, a specification a figure, Vega and the page's own
    assert not page.all("img")
    assert "<script>alert" not in text
    assert page.text.count(HOSTILE) >= 10
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_the_policy_allows_the_pages_own_scripts_alone(page):
    allowed = re.findall("'sha256-([^']+)'", page.all("meta")[1]["content"])
    assert len(allowed) == 2 and len(set(allowed)) == 2
    own = page.scripts[-1]
    digest = hashlib.sha256(own.encode()).digest()
    assert base64.b64encode(digest).decode() == allowed[-1]


def test_every_claim_stands_in_the_table_with_its_verdict(page):
    assert "4 claims: 2 hold, 1 fails, 1 not run." in page.text
    for words in ("0.97 to 0.99", "mean 0.98 ± 0.01", "8 \u00d7 10¹⁵", "(0, \u22121.5), (2, 1)"):
        assert words in page.text, words
    rows = [attributes.get("class") for attributes in page.all("tr")]
    assert rows.count("holds") == 2 and rows.count("fails") == 1 and rows.count("not-run") == 1


def test_facts_stand_at_the_foot(page):
    assert page.text.endswith("command verydeep reproduce chapter seeds 3 seconds 61.5 versions torch 2.14.1")


def test_figures_have_words(page):
    plots = [attributes for attributes in page.all("div") if attributes.get("role") == "img"]
    assert len(plots) == len(page.all("figure")) == 7
    assert all(plot["aria-labelledby"] for plot in plots)


def test_no_claims_no_table():
    page = Page(page_html("T", "", [Section("a", "A", charts=[lines()])], {}))
    assert not page.all("table") and not page.all("footer") and len(page.all("figure")) == 1


def test_no_charts_no_vega():
    text = page_html("T", "", [Section("a", "A", "Words.")], {})
    assert len(text) < 30_000 and "vega" not in Page(text).scripts[-1][:50]


def test_files(tmp_path):
    out = tmp_path / "new" / "report.html"
    written = render_page("T", "", sections()[:1], out, FACTS)
    names = ["report.html", "draws.svg", "draws.png", "lines.svg", "lines.png"]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in (out.parent / "report_files").iterdir()) == sorted(names[1:])
    assert written[2].read_bytes().startswith(b"\x89PNG")
    alone = written[1].read_text()
    assert ">Correlation</text>" in alone and "Dashed line: published." in alone  # title and caption travel along
    assert Page(out.read_text()).all("h1")


def test_two_figures_of_one_name_are_refused(tmp_path):
    twice = [Section("a", "A", charts=[lines(name="Fig"), lines(name="fig")])]
    with pytest.raises(UsageError, match="two figures have this name"):
        render_page("T", "", twice, tmp_path / "a.html", {})
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be made"):
        render_page("T", "", sections()[:1], tmp_path / "file" / "a.html", {})


def test_same_input_same_bytes(tmp_path):
    code = (
        "import sys; from pathlib import Path; from verydeep.report.page import render_page\n"
        "from tests.report.examples import sections, FACTS\n"
        "render_page('T', 'I', sections(), Path(sys.argv[1]), FACTS)"
    )
    render_page("T", "I", sections(), tmp_path / "one" / "a.html", FACTS)
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code, tmp_path / "two" / "a.html"], check=True, cwd=root)
    one = {path.name: path.read_bytes() for path in (tmp_path / "one").rglob("*.*") if path.is_file()}
    two = {path.name: path.read_bytes() for path in (tmp_path / "two").rglob("*.*") if path.is_file()}
    assert len(one) == 15 and one == two


def test_size_of_25_figures():
    figures = [dataclasses.replace(lines(), name=f"lines{k}") for k in range(20)]
    figures += [dataclasses.replace(surface(), name=f"surface{k}") for k in range(5)]
    text = page_html("T", "", [Section("a", "A", charts=figures)], {})
    assert text.count('"use strict"') < 5
    assert len(text.encode()) < 3e6


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_of_the_page(text, scheme):
    style = text[text.index(":root") : text.index("* {")]
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", style.split("@media")[scheme]))
    for ink in ("ink", "muted", "link", "holds", "fails", "rest"):
        for paper in ("paper", "raised"):
            assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
    for verdict in ("holds", "fails", "rest"):
        assert contrast(colours[verdict], colours[f"{verdict}-paper"]) >= 4.5, verdict
