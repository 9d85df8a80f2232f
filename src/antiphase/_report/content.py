"""Everything a report says, computed once; the output formats only lay it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphase._plan import Plan
from antiphase._report.chart import Chart
from antiphase._report.curves import by_delta, by_step, coefficients, error_by_step
from antiphase._report.heat_map import HeatMap
from antiphase._report.reading import ReportSource
from antiphase._report.statement import Item, headline, statement
from antiphase._report.what_if import Change, more_steps, smaller_separation
from antiphase.strategies import Strategy

MAX_MATRIX_STEPS = 1024
SHOWN_MATRIX_STEPS = 512

Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Content:
    """Everything a report says.

    Args:
        source: plan, and run if there is one.
        headline: guarantee in one sentence.
        statement: items of the privacy statement, as (term, text).
        remarks: differences between plan and run, and anything that weakens the claim.
        advice: notes of the planner, for a plan that has not run.
        charts: charts by name.
        heat_maps: C and its inverse; empty if the matrix is too large to draw.
        changes: what more steps or a smaller separation would cost.
        left_out: what was not computed, and why.
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
        source: plan, and run if there is one.
        progress: called with the name of the next part and the fraction of the work that is done.
    """
    plan, left_out = source.plan, list(source.left_out)
    progress("epsilon", 0.1)
    charts = {"delta": by_delta(plan), "steps": by_step(plan, source.run.steps_run if source.run else None)}
    progress("candidates", 0.6)
    charts["error"] = error_by_step(plan)
    if any(line.faint for line in charts["error"].series):
        left_out.append("Error chart: only the best of each family is named; the other candidates are grey.")
    if not all(candidate.per_step for candidate in plan.candidates):
        left_out.append("Error chart: for this many steps only that of the plan is drawn.")
    progress("matrices", 0.7)
    heat_maps: tuple[HeatMap, ...] = ()
    shown = _shown(plan)
    if shown is None:
        left_out.append("The matrices are too large to draw.")
    else:
        C, N = shown.encoder(), shown.noising()
        words = "" if shown.steps == plan.steps else f", the first {shown.steps:,} steps"
        heat_maps = (HeatMap(f"Strategy C{words}", C), HeatMap(f"Its inverse, which makes the noise{words}", N))
        if C.shape[0] == C.shape[1]:
            charts["coefficients"] = coefficients(C, N)
    progress("changes", 0.8)
    return Content(
        source,
        headline(source),
        tuple(statement(source)),
        source.run.remarks if source.run else (),
        () if source.run else plan.notes,
        charts,
        heat_maps,
        (*more_steps(plan), *smaller_separation(plan)),
        tuple(left_out),
    )


def _shown(plan: Plan) -> Strategy | None:
    """Return the strategy, or its first steps if it is long; None if it cannot be shortened."""
    strategy = plan.mechanism.strategy
    if strategy.steps > MAX_MATRIX_STEPS:
        strategy = plan.mechanism.first(SHOWN_MATRIX_STEPS).strategy
    return strategy if strategy.steps <= MAX_MATRIX_STEPS else None
