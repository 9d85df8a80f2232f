"""The privacy report of a plan or a run, as HTML, Markdown and JSON."""

from antiphase._report.chart import Chart, draw, series, thinned
from antiphase._report.content import Content, gather, shown_strategy
from antiphase._report.heat_map import HeatMap, draw_heat_map
from antiphase._report.html_page import chart_figure, environment, html
from antiphase._report.interval_chart import IntervalChart, draw_intervals
from antiphase._report.measured import audit_page, bounds_table, read_audit, tests_table, verdict
from antiphase._report.reading import ReportSource, check_not_inner_run, read
from antiphase._report.style import file_style, layout_style, page_style
from antiphase._report.tables import Table
from antiphase._report.text_formats import json_data, markdown

__all__ = [
    "Chart",
    "Content",
    "HeatMap",
    "IntervalChart",
    "ReportSource",
    "Table",
    "audit_page",
    "bounds_table",
    "chart_figure",
    "check_not_inner_run",
    "draw",
    "draw_heat_map",
    "draw_intervals",
    "environment",
    "file_style",
    "gather",
    "html",
    "json_data",
    "layout_style",
    "markdown",
    "page_style",
    "read",
    "read_audit",
    "series",
    "shown_strategy",
    "tests_table",
    "thinned",
    "verdict",
]
