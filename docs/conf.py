"""Sphinx's settings. `python -m sphinx -W -b html docs OUT` builds the site; nothing is fetched."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # verydeep_docs, and the package as it stands in this checkout

from verydeep import __version__  # noqa: E402

project = "verydeep"
author = "verydeep contributors"
project_copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "verydeep_docs.docstring",
    "verydeep_docs.equation",
    "verydeep_docs.table",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]

smartquotes = False  # flags begin with two hyphens

html_theme = "furo"
html_title = f"verydeep {release}"
html_math_renderer = "drawn"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests execute the notebook; the site shows its committed outputs

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
