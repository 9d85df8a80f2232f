"""The content of a report, which is computed once for all output formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphase._plan import Plan
from antiphase._report.chart import Chart
from antiphase._report.curves import (
    by_delta,
    by_step,
    clients_by_release,
    coefficients,
    error_by_step,
    updates_by_release,
)
from antiphase._report.heat_map import HeatMap
from antiphase._report.reading import ReportSource
from antiphase._report.statement import Item, headline, statement
from antiphase._report.what_if import Change, more_steps, smaller_separation
from antiphase.strategies import Strategy

MAX_MATRIX_STEPS = 1024
SHOWN_MATRIX_STEPS = 512

NOT_PRIVATE = (
    "This report contains counts of replies. They depend on the clients' data, no noise was added to them, and no "
    "guarantee covers them. Before you publish the report, make it again with --public, which leaves them out."
)
NO_EPSILON = "The curves of epsilon and the what-if table are left out, because no guarantee is stated for this run."

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Content:
    """The content of a report.

    Args:
        source: the plan, and the run if there is one.
        headline: guarantee in one sentence.
        statement: items of the privacy statement, as (term, text).
        remarks: differences between plan and run, and anything that weakens the guarantee.
        advice: notes of the planner, for a plan that has not run.
        charts: charts by name.
        heat_maps: the strategy matrix C and its inverse; empty if C is too large to draw.
        changes: "what if" rows: epsilon for more steps, or for a smaller separation, than planned.
        left_out: sentences that say which parts are left out, and why.
    """

    source: ReportSource
    headline: str
    statement: tuple[Item, ...]
    remarks: tuple[str, ...]
    advice: tuple[str, ...]
    charts: dict[str, Chart]
    heat_maps: tuple[HeatMap, ...]
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]


def gather(source: ReportSource, progress: Progress = lambda what, share: None) -> Content:
    """Compute the content of a report.

    Args:
        source: the plan, and the run if there is one.
        progress: called with the name of the next part and the fraction of the work that is done.
    """
    plan, left_out, remarks = source.plan, list(source.left_out), source.run.remarks if source.run else ()
    stated, charts = True, _federated_charts(source)
    if source.federated is not None:
        remarks = (*source.federated.remarks, *((NOT_PRIVATE,) if source.with_counts else ()))
        stated = source.federated.guarantee is not None or not source.federated.releases
    progress("epsilon", 0.1)
    if stated:
        charts |= {"delta": by_delta(plan), "steps": by_step(plan, source.run.steps_run if source.run else None)}
    else:
        left_out.append(NO_EPSILON)
    progress("candidates", 0.6)
    charts["error"] = error_by_step(plan)
    if any(line.faint for line in charts["error"].series):
        left_out.append(
            "In the error chart, only the best candidate of each family is named. The other lines are grey."
        )
    if not all(candidate.per_step for candidate in plan.candidates):
        left_out.append("In the error chart, only the chosen candidate is drawn, because there are too many steps.")
    progress("matrices", 0.7)
    heat_maps: tuple[HeatMap, ...] = ()
    shown = shown_strategy(plan)
    if shown is None:
        left_out.append("The matrices are too large to draw.")
    else:
        C, N = shown.encoder(), shown.noising()
        words = "" if shown.steps == plan.steps else f", the first {shown.steps:,} steps"
        heat_maps = (HeatMap(f"Strategy C{words}", C), HeatMap(f"Inverse of C, which shapes the noise{words}", N))
        if C.shape[0] == C.shape[1]:
            charts["coefficients"] = coefficients(C, N)
    progress("changes", 0.8)
    return Content(
        source,
        headline(source),
        tuple(statement(source)),
        remarks,
        () if source.run else plan.notes,
        charts,
        heat_maps,
        (*more_steps(plan), *smaller_separation(plan)) if stated else (),
        tuple(left_out),
    )


def _federated_charts(source: ReportSource) -> dict[str, Chart]:
    if source.federated is None or not source.federated.releases:
        return {}
    charts = {"clients": clients_by_release(source.federated)}
    return charts | ({"updates": updates_by_release(source.federated)} if source.with_counts else {})


def shown_strategy(plan: Plan) -> Strategy | None:
    """Return the strategy, or its first steps if it has too many to draw; None if it cannot be shortened."""
    strategy = plan.mechanism.strategy
    if strategy.steps > MAX_MATRIX_STEPS:
        strategy = plan.mechanism.first(SHOWN_MATRIX_STEPS).strategy
    return strategy if strategy.steps <= MAX_MATRIX_STEPS else None
