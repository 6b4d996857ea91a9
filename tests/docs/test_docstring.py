"""Docstrings become reStructuredText."""

import textwrap

import pytest
from verydeep_docs.docstring import escaped, rst
from verydeep_docs.rule import rule_texts

from verydeep.analysis.finding import SEVERITIES
from verydeep.analysis.rule import RULES

DOCSTRING = """\
One sentence about `x_` and |w|.

y_l = h(x_l) + F(x_l)    (1)

Args:    first: what it is, over
             two lines
         second, third: more
Shape:   (N, C) -> (N, K)
Raises:  UsageError: if it is *wrong*
         whatever else happens
Source:  He et al. 2016,
         Eq. 1

>>> 1 + 1
2
"""

WRITTEN = """\
One sentence about ``x_`` and \\|w\\|.

.. code-block:: text

    y_l = h(x_l) + F(x_l)    (1)

:Arguments:
    * ``first``: what it is, over two lines
    * ``second, third``: more
:Shape: (N, C) -> (N, K)
:Raises:
    * ``UsageError``: if it is \\*wrong\\*
    * whatever else happens
:Source: He et al. 2016, Eq. 1

>>> 1 + 1
2
"""


def test_sections_become_fields():
    assert "\n".join(rst(DOCSTRING.splitlines())).rstrip() == WRITTEN.rstrip()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a*b", "a\\*b"),
        ("num_", "num\\_"),
        ("`train_step`s", "``train_step``\\ s"),
        ("`a` `b`", "``a`` ``b``"),
        ("no ` end", "no \\` end"),
    ],
)
def test_nothing_else_is_markup(text, written):
    assert escaped(text) == written


def test_code_over_two_lines_stays_code():
    assert rst(["is `a", "b` here"]) == ["is ``a", "b`` here", ""]


def test_indented_paragraphs_are_kept():
    assert rst(["    a = b", "      c"]) == [".. code-block:: text", "", "        a = b", "          c", ""]


def test_every_rule_is_read():
    texts = rule_texts()
    assert [text.name for text in texts] == list(RULES)
    for text in texts:
        assert text.severities and set(text.severities) <= set(SEVERITIES), text.name
        assert text.whys and text.remedies and text.sources, text.name


def test_what_a_rule_says_is_what_it_finds():
    (shortcut,) = (text for text in rule_texts() if text.name == "no-shortcut")
    assert shortcut.severities == ["error", "warning"]
    assert textwrap.shorten(shortcut.whys[0], 60).startswith("Every path from input to output passes N weights")
    (gate,) = (text for text in rule_texts() if text.name == "shortcut-not-identity")
    assert "A norm stands after each addition, where it scales the shortcut too" in " ".join(gate.whys)
