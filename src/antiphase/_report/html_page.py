"""The report as one self-contained HTML page, from templates/report.html.jinja."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from antiphase._escape import terminal_text
from antiphase._report import federation
from antiphase._report.chart import Chart, draw
from antiphase._report.content import Content
from antiphase._report.heat_map import HeatMap, draw_heat_map
from antiphase._report.measured import measured_parts
from antiphase._report.statement import guarantee
from antiphase._report.style import page_style
from antiphase._report.tables import Table, candidates, changes, chart_table, comparison
from antiphase._version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

SECTIONS = {
    "statement": "Privacy statement",
    "ran": "Plan and run",
    "measured": "Measured",
    "participation": "Releases and participations",
    "replies": "Drop-outs and other replies (no guarantee covers these counts)",
    "epsilon": "Epsilon",
    "error": "Error",
    "matrices": "Matrices",
    "candidates": "Candidates: error, memory, time",
    "changes": "What if",
}


CHARTS = {
    "participation": ("clients",),
    "replies": ("updates",),
    "epsilon": ("delta", "steps"),
    "error": ("error", "coefficients"),
}


def html(content: Content) -> str:
    """Return the report as an HTML page."""
    from markupsafe import Markup

    plan, charts, federated = content.source.plan, content.charts, content.source.federated
    tables: dict[str, list[Table]] = {"changes": [changes(content)] if content.changes else []}
    if content.source.run is not None:
        tables["ran"] = [comparison(content) if federated is None else federation.comparison(federated)]
    if federated is not None and "clients" in charts:
        tables["participation"] = [federation.participations(federated), federation.separations(federated)]
    if federated is not None and "updates" in charts:
        tables["replies"] = [federation.replies(federated)]
    if plan.candidates:
        tables["candidates"] = [candidates(plan)]
    left_out = {name for name in ("ran", "participation", "replies", "candidates", "changes") if not tables.get(name)}
    if not content.heat_maps:
        left_out.add("matrices")
    if "delta" not in charts:
        left_out.add("epsilon")
    audit = content.source.audit
    if audit is None:
        left_out.add("measured")
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
            measured=None if audit is None else measured_parts(audit),
            charts={name: _charts(charts, names) for name, names in CHARTS.items()},
            heat_maps=[_heat_map(heat, f"heat-{i}") for i, heat in enumerate(content.heat_maps)],
        )
    )


@cache
def environment(package: str = "antiphase._report") -> Environment:
    """Return the template environment. It escapes every value and raises an error if a value is missing.

    Args:
        package: package that contains the templates. The templates of the report are always available.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=ChoiceLoader([PackageLoader(name) for name in dict.fromkeys((package, "antiphase._report"))]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_control_characters,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _without_control_characters(value: Any) -> Any:
    """Replace control and bidirectional characters with escape sequences. Jinja escapes the markup afterwards."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return terminal_text(value)
    return value


def _charts(charts: dict[str, Chart], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [chart_figure(charts[name], f"chart-{name}") for name in names if name in charts]


def chart_figure(chart: Chart, name: str) -> dict[str, Any]:
    """Return the values that the template needs to show a chart: its title, its drawing and its data."""
    from markupsafe import Markup

    svg = Markup(draw(chart, name))  # `draw` escapes every text in it
    return {"title": chart.title, "svg": svg, "data": chart_table(chart)}


def _heat_map(heat: HeatMap, name: str) -> dict[str, Any]:
    from markupsafe import Markup

    svg = Markup(draw_heat_map(heat, name))  # `draw_heat_map` escapes every text in it
    return {"title": heat.title, "summary": heat.summary, "svg": svg}
