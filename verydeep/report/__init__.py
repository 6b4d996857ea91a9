"""Measurements to figures (Altair) and to one self-contained HTML page; knows nothing of networks or experiments.

`experiments` makes charts and sections, the command line stores them as JSON and calls `page.render_page`.
"""
