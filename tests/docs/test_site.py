"""The site builds without a warning, offline, and holds together."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import verydeep
from tests.docs.page import ROOT
from verydeep import theory
from verydeep.analysis.rule import RULES
from verydeep.cli import VERBS

DOCS = ROOT / "docs"
SOURCES = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--allow-file-access-from-files", "--hide-scrollbars"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=30000", "--dump-dom"]

# Opens each page at a width, one after another, and asks how wide it is.
PROBE = """<!doctype html><body><script>
const pages = PAGES, widths = {};
const next = () => {
  const page = pages.shift();
  if (!page) { document.body.textContent = JSON.stringify(widths); return; }
  const frame = document.createElement("iframe");
  frame.width = WIDTH; frame.height = 800; frame.src = page;
  frame.onload = () => { widths[page] = frame.contentDocument.documentElement.scrollWidth; frame.remove(); next(); };
  document.body.append(frame);
};
next();
</script></body>"""


class Page(HTMLParser):
    """The names that a page has, the links that it makes, what it loads, and how high its equations are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.heights: list[float] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if "id" in values:
            self.names.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img") and "src" in values:
            self.loads.append(values["src"])
        if tag == "link" and values.get("rel") == "stylesheet":
            self.loads.append(values["href"])
        if tag == "svg" and values.get("role") == "img":
            self.heights.append(float(values["height"]))


def build(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(source), str(out)]
    # a proxy that refuses: what would be fetched fails
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    return subprocess.run(sphinx, capture_output=True, text=True, timeout=300, env=os.environ | offline)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr
    return out


def every_source_is_a_page(site: Path, pages: dict[Path, Page]) -> None:
    for source in SOURCES:
        assert (site / source.relative_to(DOCS)).with_suffix(".html").is_file(), source


def links_lead_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    num_links = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].names, f"{path.name}: {link}"
            num_links += 1
    assert num_links > 500


def nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for source in page.loads:
            assert not urlsplit(source).netloc and (path.parent / urlsplit(source).path).is_file(), source


def equations_are_drawn(site: Path, pages: dict[Path, Page]) -> None:
    heights = [height for page in pages.values() for height in page.heights]
    assert len(heights) > 30
    assert max(heights) < 100


def every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    names = set().union(*(page.names for path, page in pages.items() if path.parent == site / "reference"))
    for name in verydeep.__all__:
        assert {f"verydeep.{name}", f"module-verydeep.{name}"} & names, name


def every_function_of_theory_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    names = pages[site / "reference" / "theory.html"].names
    public = [value for name, value in vars(theory).items() if callable(value) and name[0] != "_"]
    assert len(public) > 30
    for value in public:
        assert f"{value.__module__}.{value.__qualname__}" in names, value


def every_flag_and_rule_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    flags = (site / "reference" / "command-line.html").read_text(encoding="utf-8")
    for verb in VERBS.values():
        for flag in (flag for group in verb.flags.values() for flag in group):
            words = '</span> <span class="pre">'.join(flag.spelling.split())
            assert f'<span class="pre">{words}</span>' in flags, flag.spelling
    assert set(RULES) <= pages[site / "reference" / "rules.html"].names


def sections_of_docstrings_are_fields(site: Path, pages: dict[Path, Page]) -> None:
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in ("Arguments", "Raises", "Shape", "Source"):
        assert re.search(rf"<dt[^>]*>{name}<span", text), name
    assert not re.search(r"(Args|Raises|Source): {2}", text)


CHECKS = [
    every_source_is_a_page,
    links_lead_somewhere,
    nothing_is_loaded_from_elsewhere,
    equations_are_drawn,
    every_public_name_is_in_the_reference,
    every_function_of_theory_is_in_the_reference,
    every_flag_and_rule_is_in_the_reference,
    sections_of_docstrings_are_fields,
]


def test_site(site):
    """One test: each process that runs tests would build the site for its share of several."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for check in CHECKS:
        check(site, pages)


def test_a_warning_fails_the_build(tmp_path):
    (tmp_path / "conf.py").write_text("extensions = ['myst_nb']\n")
    (tmp_path / "index.md").write_text("# Page\n\n[nowhere](nowhere.md)\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("link", ["#nothing", "absent.html", "page.html#nothing"])
def test_a_broken_link_is_seen(tmp_path, link):
    path = tmp_path / "page.html"
    path.write_text(f'<p id="here"><a href="#here">here</a> <a href="{link}">there</a></p>')
    with pytest.raises(AssertionError, match=re.escape(f"page.html: {link}")):
        links_lead_somewhere(tmp_path, {path: Page(path.read_text())})


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")
def test_no_page_is_wider_than_the_screen(site, tmp_path):
    names = [source.relative_to(DOCS).with_suffix(".html").as_posix() for source in SOURCES]
    for width in (400, 1100, 1300):
        probe = site / f"probe-{width}.html"
        probe.write_text(PROBE.replace("PAGES", json.dumps(names)).replace("WIDTH", str(width)))
        chromium = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path}", f"--window-size={width + 40},900", probe.as_uri()]
        done = subprocess.run(chromium, capture_output=True, text=True, timeout=120, check=True)
        widths = json.loads(html.unescape(re.search(r"<body>(\{.*\})</body>", done.stdout)[1]))
        assert set(widths) == set(names)
        assert {name: wide for name, wide in widths.items() if wide > width} == {}, width
