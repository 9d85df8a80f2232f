"""The charts of a report: epsilon against delta and steps, the error after each step, and the clients of releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

from antiphase._accounting import drawn_like, epsilon, epsilon_after, restated
from antiphase._bound import digits_up
from antiphase._check import Array
from antiphase._error import error
from antiphase._federated import DROPPED_OUT, FederatedReport
from antiphase._plan import Candidate, Plan, curve_steps
from antiphase._report.chart import Chart, Series, series, thinned

CURVE_POINTS = 33
MIN_POINTS = 5
SECONDS = 15.0  # time limit for each curve


def by_delta(plan: Plan) -> Chart:
    """Return a chart of the plan's epsilon for deltas around the budget's delta."""
    target = plan.problem.budget.delta
    deltas = np.geomspace(max(target * 1e-6, 1e-300), min(0.1, target * 1e4), CURVE_POINTS)
    drawn = drawn_like(plan.guarantee)
    line = _curve("plan", deltas, lambda d: epsilon(plan.mechanism, float(d), drawn).value)
    return Chart("Epsilon against delta", "delta", "epsilon", (line,), log_x=True, marks=((target, "budget"),))


def by_step(plan: Plan, steps_run: int | None) -> Chart:
    """Return a chart of epsilon against the number of steps.

    For a run that stops early, the epsilon at its last step holds only if this step was not chosen by looking at the
    outputs.
    """
    n, delta, drawn = plan.steps, plan.problem.budget.delta, drawn_like(plan.guarantee)
    steps = np.unique(np.linspace(1, n, min(n, CURVE_POINTS)).round())
    whole = restated(plan.mechanism, plan.guarantee, delta)
    line = _curve("steps so far", steps, lambda t: epsilon_after(plan.mechanism, int(t), delta, whole, drawn).value)
    marks = ((float(steps_run), f"ran {steps_run:,}"),) if steps_run else ()
    return Chart(f"Epsilon against steps, delta = {digits_up(delta)}", "steps", "epsilon", (line,), marks=marks)


def error_by_step(plan: Plan) -> Chart:
    """Return a chart of the standard deviation of the noise in the model after each step, for clipping norm 1.

    All candidates are drawn. The legend names the chosen candidate and the best candidate of every other family. The
    other lines are in the background.
    """
    chosen = plan.candidates[0].name if plan.candidates else type(plan.mechanism.strategy).__name__
    values = plan.mechanism.noise_std * np.sqrt(error(plan.mechanism.strategy, plan.problem.workload).per_step)
    at, some = thinned(len(values)), curve_steps(plan.steps)
    lines = [series(f"{chosen} (planned)", at + 1, values[at])]
    for candidate, clear in _best_of_each_family(plan):
        if candidate.per_step:
            lines.append(series(candidate.name, some, candidate.per_step, faint=not clear))
    return Chart("Noise in the model after every step", "step", "standard deviation", tuple(lines), log_y=True)


def _best_of_each_family(plan: Plan) -> Iterator[tuple[Candidate, bool]]:
    """Yield every candidate except the chosen one, best first, and whether it is the best of its family.

    The chosen candidate is the best of its own family, so no other candidate of that family counts as the best.
    """
    seen = {candidate.family for candidate in plan.candidates[:1]}
    for candidate in plan.candidates[1:]:
        yield candidate, candidate.family not in seen
        seen.add(candidate.family)


def coefficients(C: Array, N: Array) -> Chart:
    """Return a chart of the first column of the strategy matrix C and the first column of its inverse N.

    The column of N shows how later steps cancel the noise of the first step.
    """
    lag = np.arange(min(len(C), len(N), 64))
    lines = (series("C, first column", lag, C[lag, 0]), series("inverse, first column", lag, N[lag, 0]))
    return Chart("Coefficients", "lag in steps", "coefficient", lines)


def clients_by_release(report: FederatedReport) -> Chart:
    """Return a chart of the number of clients in each release, including those whose update counted as zero."""
    at = thinned(len(report.releases))
    clients = [report.releases[i].clients for i in at]
    return Chart("Clients in each release", "release", "clients", (series("clients in the release", at + 1, clients),))


def updates_by_release(report: FederatedReport) -> Chart:
    """Return a chart of the number of updates in each release, and of clients that dropped out.

    These counts depend on the clients' data, and no guarantee covers them.
    """
    at = thinned(len(report.releases))
    counts = [report.releases[i].counts for i in at]
    lines = (
        series("updates added", at + 1, [count.get("accepted", 0) for count in counts]),
        series("dropped out", at + 1, [sum(count.get(cause, 0) for cause in DROPPED_OUT) for count in counts]),
    )
    return Chart("Updates in each release", "release", "clients", lines)


def _curve(name: str, points: Array, value: Callable[[float], float]) -> Series:
    """Return the curve of `value` over `points`. If time runs out, some points are left out, evenly over the curve."""
    start, found = perf_counter(), {}
    for i in _coarse_to_fine(len(points)):
        found[i] = value(points[i])
        if len(found) >= MIN_POINTS and perf_counter() - start > SECONDS:
            break
    order = sorted(found)
    return series(name, points[order], [found[i] for i in order])


def _coarse_to_fine(count: int) -> list[int]:
    """Return the indices 0, ..., count - 1 ordered from coarse to fine: ends, middle, quarters, and so on.

    >>> _coarse_to_fine(5)
    [0, 4, 2, 1, 3]
    """
    seen: dict[int, None] = {}
    step = max(1, count - 1)
    while len(seen) < count:
        seen.update(dict.fromkeys([*range(0, count, step), count - 1]))
        step = max(1, step // 2)
    return list(seen)
