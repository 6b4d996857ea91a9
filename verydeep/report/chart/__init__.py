"""The charts that experiments draw: each takes rows, dicts of numbers and words, and gives a `Chart`.

A chart takes the width that it is given, names its points on hover, and tells series apart by more than colour.
"""

from verydeep.report.chart.bar import bar_chart as bar_chart
from verydeep.report.chart.dot import dot_chart as dot_chart
from verydeep.report.chart.figure import Chart as Chart
from verydeep.report.chart.figure import altair_chart as altair_chart
from verydeep.report.chart.grid import grid_chart as grid_chart
from verydeep.report.chart.histogram import histogram_chart as histogram_chart
from verydeep.report.chart.line import line_chart as line_chart
