"""Minimum separation: sums over patterns whose steps are far enough apart."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._participation import MinSeparation
from antiphase._sensitivity.bracket import Bracket, Case, exactly
from antiphase._sensitivity.toeplitz import earliest_square, norms_decrease
from antiphase._sensitivity.windows import windows
from antiphase.strategies import Stamped

LARGEST_CHAIN = 1 << 33  # entries that the dynamic program visits
LARGEST_SHARING = 1 << 27  # ways to share participations out among blocks
Solve = Callable[[Case], tuple[Bracket, str]]


def separation(case: Case) -> int:
    """b, no more than the steps."""
    assert isinstance(case.participation, MinSeparation)
    return min(case.participation.separation, case.steps)


def orthogonal(case: Case) -> Bracket:
    """Columns of a pattern do not overlap: the largest sum of squared norms, by a dynamic program."""
    if case.gram.bands > separation(case) and case.count > 1:
        raise NotProved(
            f"Columns {separation(case)} steps apart overlap: C^T C has {case.gram.bands} bands.",
            hint="use at most as many bands as the separation",
        )
    if norms_decrease(case.gram):
        return exactly(earliest_square(case.strategy, separation(case), case.count, "signed"))
    return _largest_sum(case, np.ascontiguousarray(case.gram.diagonal(0)))


def dynamic_program(case: Case) -> Bracket:
    """Only neighbours in a pattern interact: X on it is tridiagonal, and the sum of |X| is attained.

    So it is where bands <= 2 separation, and for two participations.
    """
    from antiphase._kernels import separated_chain

    b, k, gram = separation(case), case.count, case.gram
    if gram.bands > 2 * b and k > 2:
        raise NotProved(
            f"Steps {2 * b} apart interact: C^T C has {gram.bands} bands.",
            hint="use at most twice as many bands as the separation",
        )
    limited = k < -(-case.steps // b)
    layers = k if limited else 1
    if layers * case.steps * max(gram.bands - b, 1) > LARGEST_CHAIN:
        raise NotProved(
            f"A chain of {k} participations in {case.steps} steps is too long a computation.",
            hint="leave max_participations out, or ask for method='row-sum'",
        )
    width = max(gram.bands, b + 1)
    value, largest = np.zeros((layers, width)), np.zeros((layers, width))
    for diagonals, offset, start, stop in windows(gram):
        separated_chain(diagonals, offset, start, stop, b, value, largest, limited)
    return exactly(float(largest[:, (case.steps - 1) % width].max()))


def row_sum(case: Case) -> Bracket:
    """For each step the largest row sum of |X| over patterns that contain it, then their largest sum.

    Slightly smaller than Alg. 4, where the row sum need not be over patterns that contain the step. Where X has too
    many entries, each diagonal is bounded by its largest one.
    """
    try:
        passes = windows(case.gram)
    except NotProved:
        return _envelope_sum(case)
    from antiphase._kernels import separated_rows

    b, rows = separation(case), np.empty(case.steps)
    for diagonals, offset, start, stop in passes:
        rows[start:stop] = separated_rows(diagonals, offset, start, stop, case.steps, b, case.count)
    return Bracket(0.0, _largest_sum(case, rows).upper)


def blocks(case: Case, solve: Solve) -> Bracket:
    """Blocks do not interact: the best way to share k participations out, each block at its own worst.

    The separation between the last step of a block and the first of the next is left out, which can only add
    patterns. Where the earliest pattern is the worst in each block and leaves room for the next, nothing is added.
    Where there are too many ways, every block gets all the participations that fit in it.
    """
    assert isinstance(case.strategy, Stamped)
    repeats, steps = case.strategy.repeats, case.strategy.strategy.steps
    b, k = separation(case), case.count
    most = min(k, -(-steps // b))
    if repeats * most * k > LARGEST_SHARING:
        found, method = solve(Case(case.strategy.strategy, MinSeparation(b, most)))
        attained = method == "earliest" and steps % b == 0 and repeats * most <= k
        return Bracket(repeats * found.lower * attained, repeats * found.upper)
    parts = [solve(Case(case.strategy.strategy, MinSeparation(b, q))) for q in range(1, most + 1)]
    upper = np.array([0.0, *(bracket.upper for bracket, _ in parts)])
    lower = np.array([0.0, *(bracket.lower * (method == "earliest") for bracket, method in parts)])
    roomy = lower[: steps // b + 1]  # the next block may start at once
    return Bracket(_shared(roomy, lower, repeats, k), _shared(upper, upper, repeats, k))


def _envelope_sum(case: Case) -> Bracket:
    """The k - 1 other steps are best split evenly between earlier and later: a largest sum is concave in its count."""
    from antiphase._kernels import separated_sum

    b, others = separation(case), case.count - 1
    envelope = case.gram.envelope()
    side = np.ascontiguousarray(envelope[b:])
    halves = (separated_sum(side, b, count)[0] for count in (others // 2, others - others // 2))
    return Bracket(0.0, case.count * (float(envelope[0]) + sum(halves)))


def _largest_sum(case: Case, values: Array) -> Bracket:
    from antiphase._kernels import separated_sum

    upper, proved = separated_sum(values, separation(case), case.count)
    return Bracket(upper if proved else 0.0, upper)


def _shared(values: Array, last: Array, repeats: int, limit: int) -> float:
    """The largest sum of values over `repeats` blocks, the last with its own values, counts adding to the limit."""
    best = np.zeros(limit + 1)
    for block in [values] * (repeats - 1) + [last]:
        options = np.full((len(block), limit + 1), -np.inf)
        for q, value in enumerate(block):
            options[q, q:] = value + best[: limit + 1 - q]
        best = options.max(axis=0)
    return float(best[limit])
