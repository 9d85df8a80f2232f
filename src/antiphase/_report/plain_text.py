"""The report as plain data, for a program to read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from antiphase._bound import Bound
from antiphase._record import to_json
from antiphase._report.content import Content
from antiphase._report.statement import guarantee


def plain(content: Content) -> dict[str, Any]:
    """Everything but the pictures."""
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
        "planned": {"steps": plan.steps, "guarantee": _bound(plan.guarantee), "fingerprint": plan.fingerprint},
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
        "charts": {
            name: [{"name": s.name, "x": s.x.tolist(), "y": s.y.tolist()} for s in chart.series]
            for name, chart in content.charts.items()
        },
        "candidates": to_json(plan.candidates),
        "changes": [{"what": c.what, "guarantee": _bound(c.bound), "reason": c.reason} for c in content.changes],
        "left_out": list(content.left_out),
    }


def _bound(bound: Bound | None) -> dict[str, Any] | None:
    if bound is None:
        return None
    return {"epsilon": bound.value, "kind": bound.kind, "method": bound.method, "reference": bound.reference}
