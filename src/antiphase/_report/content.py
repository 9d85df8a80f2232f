"""Everything a report says, computed once; the forms only write it down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphase._plan import Plan
from antiphase._report.changes import Change, more_steps, smaller_separation
from antiphase._report.chart import Chart
from antiphase._report.curves import by_delta, by_step, coefficients, error_by_step
from antiphase._report.heat import HeatMap
from antiphase._report.reading import Source
from antiphase._report.statement import Item, headline, statement
from antiphase.strategies import Strategy

LARGEST_MATRIX = 1024
SHOWN_MATRIX = 512

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Content:
    """What a report says.

    Args:
        source: plan and run.
        headline: the guarantee in one sentence.
        statement: the checklist, term and text.
        remarks: where what ran differs from what was planned, and what weakens the claim.
        advice: the planner's notes, for a plan that has not run.
        charts: by name.
        heats: C and its inverse; empty where the matrix is too large to draw.
        changes: more steps, smaller separation.
        left_out: what was not computed, and why.
    """

    source: Source
    headline: str
    statement: tuple[Item, ...]
    remarks: tuple[str, ...]
    advice: tuple[str, ...]
    charts: dict[str, Chart]
    heats: tuple[HeatMap, ...]
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]


def gather(source: Source, tell: Tell = lambda what, share: None) -> Content:
    """Compute what a report says.

    Args:
        source: what to report on.
        tell: called with what is computed next and the share that is done.
    """
    plan, left_out = source.plan, list(source.left_out)
    tell("epsilon", 0.1)
    charts = {"delta": by_delta(plan), "steps": by_step(plan, source.run.steps_run if source.run else None)}
    tell("candidates", 0.6)
    charts["error"] = error_by_step(plan)
    if any(line.faint for line in charts["error"].series):
        left_out.append("Errors: the candidates without a name of their own are drawn in grey.")
    if not all(candidate.per_step for candidate in plan.candidates):
        left_out.append("Errors: for so many steps only that of the plan is drawn.")
    tell("matrices", 0.7)
    heats: tuple[HeatMap, ...] = ()
    shown = _shown(plan)
    if shown is None:
        left_out.append("The matrices are too large to draw.")
    else:
        C, N = shown.encoder(), shown.noising()
        words = "" if shown.steps == plan.steps else f", the first {shown.steps:,} steps"
        heats = (HeatMap(f"Strategy C{words}", C), HeatMap(f"Its inverse, which makes the noise{words}", N))
        if C.shape[0] == C.shape[1]:
            charts["coefficients"] = coefficients(C, N)
    tell("changes", 0.8)
    return Content(
        source,
        headline(source),
        tuple(statement(source)),
        source.run.remarks if source.run else (),
        () if source.run else plan.notes,
        charts,
        heats,
        (*more_steps(plan), *smaller_separation(plan)),
        tuple(left_out),
    )


def _shown(plan: Plan) -> Strategy | None:
    """The strategy, or its beginning where it is long."""
    strategy = plan.mechanism.strategy
    if strategy.steps > LARGEST_MATRIX:
        strategy = plan.mechanism.first(SHOWN_MATRIX).strategy
    return strategy if strategy.steps <= LARGEST_MATRIX else None
