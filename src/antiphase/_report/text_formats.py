"""The report as Markdown, for people, and as JSON data, for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from antiphase._bound import Bound
from antiphase._escape import markdown_text
from antiphase._record import to_json
from antiphase._report import federation
from antiphase._report.content import Content
from antiphase._report.measured import NOT_A_GUARANTEE, bounds_table, tests_table, verdict
from antiphase._report.statement import guarantee
from antiphase._report.tables import Table, candidates, changes, chart_table, comparison


def markdown(content: Content) -> str:
    """Return the report as Markdown."""
    return "\n".join(_lines(content)) + "\n"


def _lines(content: Content) -> Iterator[str]:
    yield "# Privacy report" if content.source.run else "# Privacy plan"
    yield f"\n**{markdown_text(content.headline)}**\n"
    yield from (f"> {markdown_text(text)}\n" for text in content.remarks)
    yield "## Privacy statement\n"
    yield from (f"- **{markdown_text(term)}**: {markdown_text(text)}" for term, text in content.statement)
    if content.source.run is not None:
        yield "\n## Plan and run\n"
        federated = content.source.federated
        yield from _table(comparison(content) if federated is None else federation.comparison(federated))
        yield from _federated_lines(content)
    audit = content.source.audit
    if audit is not None:
        yield "\n## Measured\n"
        yield f"**{markdown_text(verdict(audit))}** {NOT_A_GUARANTEE}\n"
        yield from (f"> {markdown_text(text)}\n" for text in audit.findings)
        yield from _table(bounds_table(audit))
        yield ""
        yield from _table(tests_table(audit))
    if content.source.plan.candidates:
        yield "\n## Candidates\n"
        yield from (f"- {markdown_text(text)}\n" for text in content.advice)
        yield from _table(candidates(content.source.plan))
    if content.changes:
        yield "\n## What if\n"
        yield from _table(changes(content))
    for chart in content.charts.values():
        yield f"\n## {markdown_text(chart.title)}\n"
        yield from _table(chart_table(chart))
    yield from (f"\n{markdown_text(text)}" for text in content.left_out)


def _federated_lines(content: Content) -> Iterator[str]:
    federated = content.source.federated
    if federated is None or not federated.releases:
        return
    yield "\n## Releases and participations\n"
    yield from _table(federation.participations(federated))
    yield ""
    yield from _table(federation.separations(federated))
    if content.source.with_counts:
        yield "\n## Drop-outs and other replies (no guarantee covers these counts)\n"
        yield from _table(federation.replies(federated))


def _table(table: Table) -> Iterator[str]:
    yield f"{markdown_text(table.caption)}:\n"
    yield f"| {' | '.join(map(markdown_text, table.columns))} |"
    yield f"|{'---|' * len(table.columns)}"
    yield from (f"| {' | '.join(map(markdown_text, row))} |" for row in table.rows)


def json_data(content: Content) -> dict[str, Any]:
    """Return the report as JSON data. It contains the data of the charts, but no images."""
    plan, run = content.source.plan, content.source.run
    return {
        "headline": content.headline,
        "guarantee": _bound(guarantee(content.source)),
        "delta": plan.problem.budget.delta,
        "adjacency": plan.mechanism.adjacency,
        "unit": plan.problem.unit,
        "statement": dict(content.statement),
        "remarks": list(content.remarks),
        "advice": list(content.advice),
        "planned": {"steps": plan.steps, "guarantee": _bound(content.source.planned), "fingerprint": plan.fingerprint},
        "ran": None
        if run is None
        else {
            "run_id": run.run_id,
            "steps": run.steps_run,
            "guarantee": _bound(run.guarantee),
            "smallest_delta": run.smallest_delta,
            "publications": [asdict(p) for p in run.publications],
            "rewinds": run.rewinds,
        },
        "federated": None
        if content.source.federated is None
        else federation.json_data(content.source.federated, content.source.with_counts),
        "charts": {
            name: [{"name": s.name, "x": s.x.tolist(), "y": s.y.tolist()} for s in chart.series]
            for name, chart in content.charts.items()
        },
        "candidates": to_json(plan.candidates),
        "changes": [{"what": c.what, "guarantee": _bound(c.bound), "reason": c.reason} for c in content.changes],
        "left_out": list(content.left_out),
        **({} if content.source.audit is None else {"measured": to_json(content.source.audit)}),
    }


def _bound(bound: Bound | None) -> dict[str, Any] | None:
    if bound is None:
        return None
    return {"epsilon": bound.value, "kind": bound.kind, "method": bound.method, "reference": bound.reference}
