"""The report as one self-contained HTML page: no scripts, no network, no other files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from antiphase._escape import html_text
from antiphase._report.chart import Chart
from antiphase._report.content import Content
from antiphase._report.drawing import draw
from antiphase._report.heat_map import HeatMap, draw_heat
from antiphase._report.style import page_style
from antiphase._report.tables import Table, candidates, changes, chart_table, comparison
from antiphase._version import __version__

SECTIONS = {
    "statement": "Privacy statement",
    "ran": "Plan and run",
    "epsilon": "Epsilon",
    "error": "Error",
    "matrices": "Matrices",
    "candidates": "Candidates: error, memory, time",
    "changes": "What if",
}
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def html(content: Content) -> str:
    """The report as an HTML page."""
    return "\n".join(_page(content)) + "\n"


def _page(content: Content) -> Iterator[str]:
    title = "Privacy report" if content.source.run else "Privacy plan"
    yield "<!doctype html>"
    yield f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    yield '<link rel="icon" href="data:,">'
    yield f"<style>{page_style()}</style></head><body>"
    yield '<a class="skip" href="#main">Skip to the report</a>'
    yield f"<header><h1>{title}</h1>"
    parts = _sections(content)
    links = "".join(f'<li><a href="#{name}">{SECTIONS[name]}</a></li>' for name in parts)
    yield f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main id="main">'
    yield f'<div class="answer"><strong>{html_text(content.headline)}</strong>{_answer(content)}</div>'
    yield from (f'<p class="remark">{html_text(text)}</p>' for text in content.remarks)
    for name, body in parts.items():
        yield f'<section aria-labelledby="{name}"><h2 id="{name}">{SECTIONS[name]}</h2>{body}</section>'
    yield from (f'<p class="dim">{html_text(text)}</p>' for text in content.left_out)
    plan = content.source.plan.fingerprint[:16]
    yield f"</main><footer>Written by antiphase {__version__} from plan {plan}.</footer></body></html>"


def _answer(content: Content) -> str:
    plan = content.source.plan
    words = (
        f"Unit: one {plan.problem.unit}. Adjacency: {plan.mechanism.adjacency}. Kind of bound: {plan.guarantee.kind}. "
        f"Accounting: {plan.guarantee.method}."
    )
    return f'<p class="dim">{html_text(words)}</p>'


def _sections(content: Content) -> dict[str, str]:
    charts = content.charts
    parts = {"statement": _definitions(content.statement)}
    if content.source.run is not None:
        parts["ran"] = _table(comparison(content))
    parts["epsilon"] = _figures([charts["delta"], charts["steps"]], "epsilon")
    parts["error"] = _figures([charts[n] for n in ("error", "coefficients") if n in charts], "error")
    if content.heats:
        parts["matrices"] = _heats(content.heats)
    if content.source.plan.candidates:
        notes = "".join(f"<li>{html_text(text)}</li>" for text in content.advice)
        parts["candidates"] = (f"<ul>{notes}</ul>" if notes else "") + _table(candidates(content.source.plan))
    parts["changes"] = _table(changes(content))
    return parts


def _definitions(items: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<dt>{html_text(a)}</dt><dd>{html_text(b)}</dd>' for a, b in items)}</dl>"


def _figures(charts: Sequence[Chart], name: str) -> str:
    parts = []
    for i, chart in enumerate(charts):
        numbers = _table(chart_table(chart))
        parts.append(
            f"<figure><figcaption>{html_text(chart.title)}</figcaption>{draw(chart, f'{name}-{i}')}"
            f"<details><summary>Data: {html_text(chart.title)}</summary>{numbers}</details></figure>"
        )
    return f'<div class="grid2">{"".join(parts)}</div>'


def _heats(heats: Sequence[HeatMap]) -> str:
    parts = (
        f"<figure><figcaption>{html_text(heat.title)}</figcaption>{draw_heat(heat, f'heat-{i}')}"
        f'<p class="dim">{html_text(heat.summary)} Blue is negative, orange positive, white zero; the colour grows '
        "with the square root of the magnitude.</p></figure>"
        for i, heat in enumerate(heats)
    )
    return f'<div class="grid2">{"".join(parts)}</div>'


def _table(table: Table) -> str:
    head = "".join(f"<th{_words(table, i)} scope=col>{html_text(name)}</th>" for i, name in enumerate(table.columns))
    body = "".join(
        "<tr>" + "".join(f"<td{_words(table, i)}>{html_text(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html_text(table.caption)}"><table>'
        f"<caption>{html_text(table.caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _words(table: Table, column: int) -> str:
    return ' class="words"' if column in table.words else ""
