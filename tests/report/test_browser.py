"""The page in a browser without a network: every figure drawn, nothing complained of, nothing wider than the screen."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.report.examples import FACTS, sections
from verydeep.report.page import page_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--enable-logging=stderr", "--virtual-time-budget=15000"]
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars", "--allow-file-access-from-files"]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed"),
]

# Asks the page, once it has drawn all figures, and after a sort and a filter.
PROBE = """
const ids = () => [...document.querySelectorAll(".all tbody tr")].filter((row) => row.getClientRects().length)
  .map((row) => row.querySelector("th").dataset.value);
const ask = () => {
  const figures = [...document.querySelectorAll("figure")];
  if (!figures.every((figure) => figure.classList.contains("drawn"))) return setTimeout(ask, 50);
  const answer = {
    width: innerWidth, needs: document.documentElement.scrollWidth,
    figures: figures.map((figure) => ({
      id: figure.id, marks: figure.querySelectorAll(".live .role-mark > *").length,
      room: figure.querySelector(".live").clientWidth,
      wide: figure.querySelector(".live svg").getBoundingClientRect().width,
      still: figure.querySelector(".still").getClientRects().length,
    })),
    all: ids(),
  };
  const heads = [...document.querySelectorAll(".all th button")];
  heads[1].click(); answer.rising = ids();
  heads[1].click(); answer.falling = ids(); answer.sort = heads[1].parentNode.getAttribute("aria-sort");
  document.getElementById("show-fails").click(); answer.fails = ids();
  const text = JSON.stringify(answer);
  if (parent !== window) return parent.postMessage(text, "*");
  document.body.append(Object.assign(document.createElement("pre"), {id: "answer", textContent: text}));
};
ask();
"""
# A narrow window is wider than a phone in some browsers: a frame is as narrow as it is told.
FRAME = """<!doctype html><iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe><script>
addEventListener("message", (event) => {{
  document.body.append(Object.assign(document.createElement("pre"), {{id: "answer", textContent: event.data}}));
}});</script>"""


def open_page(path: Path, tmp_path: Path, *flags: str) -> tuple[str, list[str]]:
    """What the document has become, and what the console says."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", path.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def text() -> str:
    return page_html("Title", "About.", sections(), FACTS)


def test_every_figure_is_drawn_under_the_pages_own_policy(text, tmp_path):
    (tmp_path / "page.html").write_text(text)
    document, console = open_page(tmp_path / "page.html", tmp_path)
    assert console == []
    assert document.count('class="drawn"') == text.count("<figure") == 7


@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_sorts_and_filters(text, tmp_path, width):
    asking = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    before, end, after = asking.rpartition("</body>")
    (tmp_path / "page.html").write_text(f"{before}<script>{PROBE}</script>{end}{after}")
    (tmp_path / "frame.html").write_text(FRAME.format(page="page.html", width=width))
    document, console = open_page(tmp_path / "frame.html", tmp_path, "--window-size=1400,1000")
    assert console == []
    answer = json.loads(html.unescape(re.search(r'<pre id="answer">(.*?)</pre>', document, re.DOTALL).group(1)))
    assert answer["width"] == width and answer["needs"] <= width
    for figure in answer["figures"]:
        assert figure["wide"] <= figure["room"] + 1, figure
        assert figure["marks"] > 0 and figure["still"] == 0, figure
    first, table, big, _ = answer["all"]
    assert (first, table, big) == ("shallow", "table", "big")
    assert answer["fails"] == ["table"]
    assert answer["rising"][0] == answer["falling"][0] == "shallow"  # what has no number comes last
    assert answer["sort"] == "descending"


def test_without_scripts_the_still_images_stay(text, tmp_path):
    """Scripts are taken out: what is left is what a reader without them sees."""
    (tmp_path / "page.html").write_text(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    document, console = open_page(tmp_path / "page.html", tmp_path)
    assert console == [] and document.count('class="still"><svg') == 7 and 'class="drawn"' not in document
