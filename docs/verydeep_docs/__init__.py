"""Extensions of Sphinx for this site: docstrings, equations, and tables that are made from the code."""
