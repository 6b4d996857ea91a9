"""Equations as drawings within the page, made at the build by ziamath: a reader needs neither scripts nor fonts."""

import html

import ziamath
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

SIZE = 17  # pixels; the theme's text has 16, in letters that are a little larger


def drawing(latex: str, *, inline: bool) -> str:
    """The equation as SVG, its line that of the text around it."""
    equation = ziamath.Latex(latex, size=SIZE, inline=inline, color="currentColor")
    name = html.escape(" ".join(latex.split()), quote=True)
    style = f"vertical-align: {equation.getyofst():.2f}px; max-width: none"
    return equation.svg().replace("<svg ", f'<svg role="img" aria-label="{name}" style="{style}" ', 1)


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(drawing(node.astext(), inline=True))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="equation">{drawing(node.astext(), inline=False)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    ziamath.config.svg2 = False  # letters as paths: symbols of several drawings would share their names
    app.add_html_math_renderer("drawn", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
