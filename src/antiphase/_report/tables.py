"""The tables of a report. All cells are text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._plan import Plan
from antiphase._report.chart import Chart, thinned
from antiphase._report.content import Content

MODEL_MEGABYTES = 4.0  # size of one million float32 parameters
FIRST_POINTS = 3  # tables have all of the first points, because coefficients change most between the first lags
ROUNDED_UP = ("epsilon", "delta")  # labels of axes whose numbers are part of a guarantee


@dataclass(frozen=True)
class Table:
    """A table. `text_columns` are the indices of columns that contain sentences."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: tuple[int, ...] = ()


def candidates(plan: Plan) -> Table:
    """Return a table of all candidates of a plan."""
    return Table(
        "All candidates that the planner tried, best first, as recorded in the plan, at epsilon "
        f"{digits_up(plan.problem.budget.epsilon)} and delta {digits_up(plan.problem.budget.delta)}. MB is the memory "
        "of the noise for one million float32 parameters",
        ("mechanism", "error", "noise multiplier", "epsilon", "memory copies", "MB", "search seconds", "batches"),
        tuple(
            (
                c.name,
                f"{c.error:.4g}",
                f"{c.noise_multiplier:.4g}",
                f"{rounded_up(c.epsilon)} {c.kind}",
                f"{c.memory_copies:,}",
                f"{MODEL_MEGABYTES * c.memory_copies:,.0f}",
                f"{c.seconds:.2f}",
                c.batches,
            )
            for c in plan.candidates
        ),
    )


def comparison(content: Content) -> Table:
    """Return a table that compares the plan with the run, as recorded in the ledger."""
    run = content.source.run
    assert run is not None
    rows = [
        ("steps", f"{run.steps_planned:,}", f"{run.steps_run:,}"),
        (f"epsilon at delta {digits_up(run.delta)}", _bound(run.planned), _bound(run.guarantee)),
        ("publications", "", f"{len(run.publications)}"),
        ("unpublished steps replayed", "0", f"{run.rewinds}"),
    ]
    rows += [(f"published: {p.label}", "", f"after {p.steps:,} steps") for p in run.publications]
    return Table("From the plan and from the authenticated ledger", ("", "planned", "ran"), tuple(rows))


def changes(content: Content) -> Table:
    """Return a table with the epsilon of each change to the plan."""
    plan = content.source.plan
    now = ("as planned", rounded_up(plan.guarantee.value), plan.guarantee.kind, "")
    rows = tuple(
        (
            c.what,
            "" if c.bound is None else rounded_up(c.bound.value),
            "" if c.bound is None else c.bound.kind,
            c.reason,
        )
        for c in content.changes
    )
    caption = f"Epsilon at delta {digits_up(plan.problem.budget.delta)} with the same noise"
    return Table(caption, ("change", "epsilon", "kind", "why not computed"), (now, *rows), text_columns=(3,))


def chart_table(chart: Chart, most: int = 12) -> Table:
    """Return the data of a chart as a table, with the first points of each line and at most `most` others."""
    return Table(f"{chart.title}: data", ("line", chart.x_label, chart.y_label), tuple(_points(chart, most)))


def _points(chart: Chart, most: int) -> Iterator[tuple[str, ...]]:
    in_x, in_y = (digits_up if label in ROUNDED_UP else _nearest for label in (chart.x_label, chart.y_label))
    for line in chart.series:
        count = len(line.x)
        for i in sorted({*range(min(count, FIRST_POINTS)), *thinned(count, most).tolist()}):
            yield line.name, in_x(float(line.x[i])), in_y(float(line.y[i]))


def _nearest(value: float) -> str:
    return f"{value:.6g}"


def _bound(bound: Bound | None) -> str:
    return "nothing released" if bound is None else f"{rounded_up(bound.value)} ({bound.kind})"
