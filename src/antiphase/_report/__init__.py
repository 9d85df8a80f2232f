"""The report: what a plan or a run promises, for people to read and programs to check."""

from antiphase._report.chart import Chart, series, thinned
from antiphase._report.content import Content, gather
from antiphase._report.drawing import draw
from antiphase._report.heat import HeatMap, draw_heat
from antiphase._report.html_page import html
from antiphase._report.markdown_page import markdown
from antiphase._report.plain_text import plain
from antiphase._report.reading import Source, check_not_federated, read
from antiphase._report.style import file_style

__all__ = [
    "Chart",
    "Content",
    "HeatMap",
    "Source",
    "check_not_federated",
    "draw",
    "draw_heat",
    "file_style",
    "gather",
    "html",
    "markdown",
    "plain",
    "read",
    "series",
    "thinned",
]
