"""The report as one self-contained HTML page, from templates/report.html.jinja."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from antiphase._escape import terminal_text
from antiphase._report.chart import Chart, draw
from antiphase._report.content import Content
from antiphase._report.heat_map import HeatMap, draw_heat_map
from antiphase._report.statement import guarantee
from antiphase._report.style import page_style
from antiphase._report.tables import candidates, changes, chart_table, comparison
from antiphase._version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = {
    "statement": "Privacy statement",
    "ran": "Plan and run",
    "epsilon": "Epsilon",
    "error": "Error",
    "matrices": "Matrices",
    "candidates": "Candidates: error, memory, time",
    "changes": "What if",
}


def html(content: Content) -> str:
    """Return the report as an HTML page."""
    from markupsafe import Markup

    plan, charts = content.source.plan, content.charts
    tables = {"changes": changes(content)}
    if content.source.run is not None:
        tables["ran"] = comparison(content)
    if plan.candidates:
        tables["candidates"] = candidates(plan)
    left_out = {name for name in ("ran", "candidates") if name not in tables}
    if not content.heat_maps:
        left_out.add("matrices")
    error_charts = [charts[name] for name in ("error", "coefficients") if name in charts]
    return (
        environment()
        .get_template("report.html.jinja")
        .render(
            title="Privacy report" if content.source.run else "Privacy plan",
            version=__version__,
            chart_style=Markup(page_style()),
            content=content,
            plan=plan,
            bound=guarantee(content.source) or plan.guarantee,
            sections={name: heading for name, heading in SECTIONS.items() if name not in left_out},
            tables=tables,
            epsilon_charts=[_chart(c, f"epsilon-{i}") for i, c in enumerate((charts["delta"], charts["steps"]))],
            error_charts=[_chart(c, f"error-{i}") for i, c in enumerate(error_charts)],
            heat_maps=[_heat_map(heat, f"heat-{i}") for i, heat in enumerate(content.heat_maps)],
        )
    )


@cache
def environment() -> Environment:
    """Return the template environment, which escapes every value and raises if one is missing."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("antiphase._report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_control_characters,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _without_control_characters(value: Any) -> Any:
    """Replace control and bidirectional characters by escape sequences; Jinja escapes the markup afterwards."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return terminal_text(value)
    return value


def _chart(chart: Chart, name: str) -> dict[str, Any]:
    from markupsafe import Markup

    svg = Markup(draw(chart, name))  # `draw` escapes every text in it
    return {"title": chart.title, "svg": svg, "data": chart_table(chart)}


def _heat_map(heat: HeatMap, name: str) -> dict[str, Any]:
    from markupsafe import Markup

    svg = Markup(draw_heat_map(heat, name))  # `draw_heat_map` escapes every text in it
    return {"title": heat.title, "summary": heat.summary, "svg": svg}
