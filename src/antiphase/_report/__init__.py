"""The privacy report of a plan or a run, as HTML, Markdown and JSON."""

from antiphase._report.chart import Chart, draw, series, thinned
from antiphase._report.content import Content, gather
from antiphase._report.heat_map import HeatMap, draw_heat_map
from antiphase._report.html_page import html
from antiphase._report.reading import ReportSource, check_not_federated, read
from antiphase._report.style import file_style
from antiphase._report.text_formats import json_data, markdown

__all__ = [
    "Chart",
    "Content",
    "HeatMap",
    "ReportSource",
    "check_not_federated",
    "draw",
    "draw_heat_map",
    "file_style",
    "gather",
    "html",
    "json_data",
    "markdown",
    "read",
    "series",
    "thinned",
]
