"""Computes the parts of the page for given settings, one after another.

The plan comes first. Then the curves of error against epsilon and against steps follow, one point at a time. Each point
needs new plans, for the chosen mechanism family and for DP-SGD. If the chosen mechanism is a BLT with balls-in-bins
sampling, a plan for every point would take minutes. All points of its curves except the current setting are then
estimated from few Monte Carlo samples, with as many buffers as the current plan has. All points measure the error by
the objective of the plan, so their errors can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

from antiphase._accounting import Budget
from antiphase._bound import digits_up, rounded_up
from antiphase._errors import AntiphaseError
from antiphase._explore.settings import ANY, ExplorerSettings
from antiphase._plan import Candidate, Plan
from antiphase._planner import estimated_blt, plan, plans_so_far, promised, ranked_problem
from antiphase._problem import Problem
from antiphase._report import Chart, HeatMap, draw, draw_heat_map, series, shown_strategy

Part = dict[str, Any]
Progress = Callable[[str, float], None]

PIPELINE_OF = {
    "Poisson": "poisson",
    "CyclicPoisson": "cyclic-poisson",
    "FixedSize": "fixed-size",
    "FixedEpochs": "fixed-epochs",
    "BallsInBins": "balls-in-bins",
    "ShuffledEpochs": "shuffled-epochs",
}
BATCHES = {
    "Poisson": "Poisson sampling",
    "CyclicPoisson": "cyclic Poisson sampling",
    "FixedSize": "batches of fixed size",
    "FixedEpochs": "the same order in every epoch",
    "BallsInBins": "balls-in-bins sampling",
    "ShuffledEpochs": "shuffled epochs",
}
TITLES = {"blt": "BLT", "toeplitz": "Toeplitz", "identity (DP-SGD)": "DP-SGD", "tree": "Tree", "banded": "Banded"}
PROVISIONAL = "Best so far. Balls-in-bins sampling is still being tried, which takes longer."
FACTORS = (0.5, 2.0, 0.25, 4.0)  # points of a curve, as multiples of the current setting, in the order of computation
NO_MEMORY = 0.5  # position of zero buffers on the logarithmic axis of memory
MAX_CURVE_STEPS = 16_384
KEPT_POINTS = 4096


@dataclass(frozen=True)
class Line:
    """A kind of mechanism, whose errors form one line of a chart.

    Args:
        name: name of the line on the chart.
        families: names of the mechanism families, for the argument `families` of `plan`.
        pipelines: ways to draw batches, for the argument `pipelines` of `plan`.
        buffers: for a BLT with balls-in-bins sampling, the number of buffers; the points of the line are estimated. For
            all other mechanisms, None.
        now: error at the current setting, if known.
    """

    name: str
    families: tuple[str, ...]
    pipelines: tuple[str, ...] | None
    buffers: int | None = None
    now: float | None = field(default=None, compare=False)

    @property
    def is_estimated(self) -> bool:
        """True if the points of the line are estimated from few samples."""
        return self.buffers is not None


@dataclass
class Answers:
    """Computes the parts of the page for given settings, and caches the points of the curves.

    Args:
        points: the cached errors, by the problem (as text) and the line. None if there is no plan for the problem with
            a mechanism of the line.
    """

    points: dict[tuple[str, Line], float | None] = field(default_factory=dict)

    def parts(self, settings: ExplorerSettings, progress: Progress) -> Iterator[tuple[str, Part]]:
        """Yield the parts of the page as (name, content), the plan first. A part replaces the one of the same name.

        Args:
            settings: the settings of the page.
            progress: function that is called with a description and the fraction of the work that is done. It may raise
                an error to stop the work.
        """
        for found, is_final in plans_so_far(settings.problem, settings.pipelines, progress):
            yield "plan", plan_part(settings, found) | ({} if is_final else {"provisional": PROVISIONAL})
        progress("drawing", 1.0)
        ranked = ranked_problem(settings.problem, settings.pipelines)
        lines = compared_lines(settings, found)
        curves: list[tuple[str, Callable[[float], Problem | None], float]] = [
            ("epsilon", partial(_with_epsilon, ranked), settings.epsilon),
            ("steps", partial(_with_steps, ranked), settings.steps),
        ]
        total, done = len(curves) * (len(FACTORS) + 1) * len(lines), 0
        for name, at, centre in curves:
            curve: dict[str, dict[float, float]] = {line.name: {} for line in lines}
            for factor in (1.0, *FACTORS):
                for line in lines:
                    progress(f"error against {name}", done / total)
                    done += 1
                    asked = at(factor)
                    if factor == 1.0 and line.now is not None:
                        error: float | None = line.now
                    else:
                        error = None if asked is None else self._error(asked, line, progress, done / total)
                    if error is not None:
                        curve[line.name][factor * centre] = error
                if factor != 1.0:
                    yield name, curve_part(name, settings, curve, [line.name for line in lines if line.is_estimated])

    def _error(self, problem: Problem, line: Line, progress: Progress, share: float) -> float | None:
        """Return the least error of a kind of mechanism; None if no such mechanism fits the problem."""
        key = (repr(problem), line)
        if key not in self.points:
            if len(self.points) >= KEPT_POINTS:
                self.points.clear()

            def tell(what: str, _: float) -> None:
                progress(f"{line.name} at {_at(problem)}", share)

            try:
                self.points[key] = _point(problem, line, tell)
            except AntiphaseError:
                self.points[key] = None
        return self.points[key]


def _point(problem: Problem, line: Line, progress: Progress) -> float:
    if line.buffers is None:
        return plan(problem, line.families, pipelines=line.pipelines, progress=progress).error
    progress("estimate", 0.0)
    return estimated_blt(problem, line.buffers, promised(problem, "balls-in-bins"))[1]


def _at(problem: Problem) -> str:
    return f"epsilon {problem.budget.epsilon:g}, {problem.steps:,} steps"


def _with_epsilon(problem: Problem, factor: float) -> Problem:
    return replace(problem, budget=Budget(factor * problem.budget.epsilon, problem.budget.delta))


def _with_steps(problem: Problem, factor: float) -> Problem | None:
    steps = round(factor * problem.steps)
    return replace(problem, steps=steps) if 1 <= steps <= max(MAX_CURVE_STEPS, problem.steps) else None


def compared_lines(settings: ExplorerSettings, found: Plan) -> list[Line]:
    """Return the kinds of mechanisms on the curves: the chosen one and DP-SGD.

    If DP-SGD is the chosen mechanism, the second line is the best mechanism of any other family.
    """
    chosen = found.candidates[0]
    lines = [_line(chosen)]
    if chosen.family != "identity":
        return [*lines, Line("DP-SGD", ("identity",), _pipelines_of_dp_sgd(settings))]
    others = [c for c in found.candidates if c.family != "identity"]
    return [*lines, _line(min(others, key=lambda c: c.error))] if others else lines


def _line(candidate: Candidate) -> Line:
    estimated = candidate.family == "blt" and candidate.batches == "BallsInBins"
    buffers = candidate.size if estimated else None
    return Line(
        family_title(candidate), (candidate.family,), (PIPELINE_OF[candidate.batches],), buffers, candidate.error
    )


def _pipelines_of_dp_sgd(settings: ExplorerSettings) -> tuple[str, ...] | None:
    """Return the ways to draw batches (pipelines) for DP-SGD, or None for all ways.

    They are those of the settings, with Poisson sampling in place of cyclic Poisson and balls-in-bins sampling.
    """
    same = {ANY: None, "cyclic-poisson": ("poisson",), "balls-in-bins": ("poisson",)}
    return same.get(settings.participation, (settings.participation,))


def family_title(candidate: Candidate) -> str:
    """Return the name of a family as the page writes it, such as "BLT" or "DP-SGD"."""
    return {"identity": "DP-SGD"}.get(candidate.family) or TITLES.get(candidate.family, candidate.family)


def candidate_title(candidate: Candidate) -> str:
    """Return the name of a candidate as the page writes it, such as "BLT (1 buffer)".

    >>> from antiphase import Poisson
    >>> candidate_title(Candidate("identity", 1.0, 1.0, 1.0, 1.0, "exact", 0, 0.1, Poisson(0.1)))
    'DP-SGD'
    """
    name = candidate.name
    start = next((known for known in TITLES if name.startswith(known)), "")
    return TITLES[start] + name[len(start) :] if start else name


def plan_part(settings: ExplorerSettings, found: Plan) -> Part:
    """Return the part of the page about the plan: best mechanism, numbers, candidates, matrices and code."""
    chosen, bound = found.candidates[0], found.guarantee
    plain = next((c for c in found.candidates if c.family == "identity"), None)
    return {
        "name": candidate_title(chosen),
        "batches": BATCHES[chosen.batches],
        "sentence": _comparison(chosen, plain),
        "facts": [
            ["guarantee", f"epsilon {rounded_up(bound.value)} at delta {digits_up(settings.delta)} ({bound.kind})"],
            ["proof", f"{bound.method}; {bound.reference}"],
            ["noise multiplier", f"{chosen.noise_multiplier:.4g}"],
            ["memory", _copies(chosen.memory_copies)],
            ["data", f"{settings.examples:,} examples"],
        ],
        "error": chosen.error,
        "memory": {"svg": draw(memory_chart(found), "memory"), "table": _candidate_rows(found)},
        "matrices": _matrices(found),
        "python": settings.python,
        "command": settings.command,
        "notes": list(found.notes),
    }


def _comparison(chosen: Candidate, plain: Candidate | None) -> str:
    if chosen.family == "identity":
        return "Independent noise is best here. Amplification by sampling gains more than correlated noise would."
    if plain is None:
        return "DP-SGD was not tried with these batches."
    less = 100.0 * (1.0 - chosen.error / plain.error)
    return f"It leaves {less:.0f} % less noise in the model than DP-SGD ({BATCHES[plain.batches]}) at the same epsilon."


def _copies(copies: int) -> str:
    return "no extra memory" if copies == 0 else f"{copies:,} model-sized buffer" + ("" if copies == 1 else "s")


def memory_chart(found: Plan) -> Chart:
    """Return a chart of error against memory: the Pareto front, and all other candidates in the background."""
    chosen = found.candidates[0]

    def place(candidate: Candidate) -> float:
        return max(NO_MEMORY, float(candidate.memory_copies))

    front = sorted(found.pareto, key=place)
    others = [c for c in found.candidates if c not in front and c is not chosen]
    most = max(place(c) for c in found.candidates)
    powers = [4**i for i in range(12) if 4**i <= most]
    ticks = ((NO_MEMORY, "0"), *((float(value), f"{value:,}") for value in powers))
    lines = [
        series("best for its memory", [place(c) for c in front], [c.error for c in front], dots=True),
        series("chosen", [place(chosen)], [chosen.error], dots=True, joined=False),
        series("others", [place(c) for c in others], [c.error for c in others], faint=True, dots=True, joined=False),
    ]
    shown = tuple(line for line in lines if len(line.x))
    return Chart(
        "Error against memory", "model-sized buffers", "predicted error", shown, log_x=True, log_y=True, x_ticks=ticks
    )


def _candidate_rows(found: Plan) -> Part:
    front = set(found.pareto)
    return {
        "columns": ["mechanism", "batches", "error", "buffers", "best for its memory"],
        "rows": [
            [candidate_title(c), BATCHES[c.batches], f"{c.error:.4g}", f"{c.memory_copies:,}", "yes" * (c in front)]
            for c in found.candidates
        ],
    }


def _matrices(found: Plan) -> list[Part]:
    shown = shown_strategy(found)
    if shown is None:
        return []
    words = "" if shown.steps == found.steps else f", first {shown.steps:,} steps"
    heats = (
        HeatMap(f"Strategy C{words}", shown.encoder()),
        HeatMap(f"Its inverse, which shapes the noise{words}", shown.noising()),
    )
    inline = ' style="image-rendering:pixelated"'  # forbidden on the page, whose style sheet has the same rule
    return [
        {"title": heat.title, "summary": heat.summary, "svg": draw_heat_map(heat, f"matrix-{i}").replace(inline, "")}
        for i, heat in enumerate(heats)
    ]


def curve_part(
    name: str, settings: ExplorerSettings, curve: dict[str, dict[float, float]], estimated: Sequence[str] = ()
) -> Part:
    """Return a curve with its table, and sentences that explain it.

    Args:
        name: "epsilon" or "steps".
        settings: the settings of the page.
        curve: for each line, its name and its points. The points are a dict from epsilon or steps to the error.
        estimated: names of the lines whose points are estimated from few samples.
    """
    centre = float(settings.epsilon if name == "epsilon" else settings.steps)
    lines = tuple(
        series(line, sorted(values), [values[x] for x in sorted(values)], dots=True)
        for line, values in curve.items()
        if values
    )
    if not lines:
        return {
            "svg": "",
            "table": {"columns": [], "rows": []},
            "words": ["No guarantee is proved for any point of this curve."],
        }
    title = "Error against epsilon" if name == "epsilon" else "Error against steps"
    ticks = tuple((x, f"{x:,.4g}") for x in sorted({x for line in lines for x in line.x.tolist()}))
    chart = Chart(
        title, name, "predicted error", lines, log_x=True, log_y=True, marks=((centre, "now"),), x_ticks=ticks
    )
    words = price_in_words(centre, curve) if name == "epsilon" else steps_in_words(centre, curve)
    words += [f"{line}: all points except the current setting are estimates, within about 1 %." for line in estimated]
    rows = [[line.name, f"{x:,.6g}", f"{y:.4g}"] for line in lines for x, y in zip(line.x, line.y, strict=True)]
    return {
        "svg": draw(chart, f"curve-{name}"),
        "table": {"columns": ["mechanism", name, "error"], "rows": rows},
        "words": words,
    }


def price_in_words(epsilon: float, curve: dict[str, dict[float, float]]) -> list[str]:
    """Return sentences about what a smaller epsilon costs, and which epsilon DP-SGD would need for the same error.

    >>> for words in price_in_words(2.0, {"BLT": {1.0: 30.0, 2.0: 20.0}, "DP-SGD": {2.0: 40.0, 4.0: 20.0}}):
    ...     print(words)
    Halving epsilon from 2 to 1 raises the predicted error by 50 %.
    At epsilon 2, DP-SGD has 2.00 times the error. It needs epsilon 4 or so for the same error.
    """
    (_, mine), *others = curve.items()
    now = mine.get(epsilon)
    if now is None:
        return []
    words = []
    for factor, start in ((0.5, "Halving"), (0.25, "A quarter of"), (2.0, "Doubling")):
        if factor * epsilon in mine:
            change = 100.0 * (mine[factor * epsilon] / now - 1.0)
            to = f"{start} epsilon from {epsilon:g} to {factor * epsilon:g}"
            if start == "A quarter of":
                to = f"Dividing epsilon by four, to {factor * epsilon:g},"
            words.append(f"{to} {'raises' if change >= 0.0 else 'lowers'} the predicted error by {abs(change):.0f} %.")
    for other, values in others:
        if epsilon in values:
            same = _epsilon_for(values, now)
            needs = f" It needs epsilon {same:.2g} or so for the same error." if same else ""
            words.append(f"At epsilon {epsilon:g}, {other} has {values[epsilon] / now:.2f} times the error.{needs}")
    return words


def _epsilon_for(values: dict[float, float], error: float) -> float | None:
    """Return the epsilon at which the interpolated curve has the given error; None if it has this error nowhere."""
    points = sorted(values.items())
    for (low, high_error), (high, low_error) in pairwise(points):
        if low_error <= error <= high_error and low_error < high_error:
            share = math.log(high_error / error) / math.log(high_error / low_error)
            return low * (high / low) ** share
    return None


def steps_in_words(steps: float, curve: dict[str, dict[float, float]]) -> list[str]:
    """Return sentences about the error against steps: what stays fixed, and what twice as many steps change."""
    words = ["Data, batch size and learning rate stay the same, so more steps mean more epochs."]
    mine = next(iter(curve.values()))
    if steps in mine and 2.0 * steps in mine:
        change = 100.0 * (mine[2.0 * steps] / mine[steps] - 1.0)
        words.append(f"Twice as many steps change the predicted error by {change:+.0f} %.")
    return words
