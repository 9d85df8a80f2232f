"""Sensitivity for a minimum separation between participations.

A pattern is a set of steps in which one example takes part: at most k steps, which are at least b apart. X = C^T C is
the Gram matrix of C. The sum of X over a pattern is the sum of X[i, j] over all pairs of steps i and j of the pattern,
including i = j.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._participation import MinSeparation
from antiphase._sensitivity.bracket import Bracket, Case, exactly
from antiphase._sensitivity.toeplitz import coefficients, column_square, earliest_square, has_column, one_pass
from antiphase._sensitivity.windows import windows

LARGEST_CHAIN = 1 << 33  # maximum number of entries of X that the dynamic program visits
LARGEST_SHARING = 1 << 27  # maximum number of operations to split the participations over blocks
Solve = Callable[[Case], tuple[Bracket, str]]


def separation(case: Case) -> int:
    """Return the separation b, or the number of steps if that is smaller."""
    return min(case.participation.spacing(case.steps), case.steps)


def orthogonal(case: Case) -> Bracket:
    """Return the largest sum of squared column norms over a pattern, if the columns of each pattern are orthogonal."""
    if case.gram.bands > separation(case) and case.count > 1:
        raise NotProved(
            f"Columns {separation(case)} steps apart overlap, because C^T C has {case.gram.bands} bands.",
            hint="use a strategy with at most as many bands as the separation",
        )
    if case.gram.norms_decrease:
        return exactly(earliest_square(case.strategy, separation(case), case.count, "signed"))
    if case.count == 1:
        return exactly(case.gram.largest_square())
    return _largest_sum(case, np.ascontiguousarray(case.gram.diagonal(0)))


def majorant(case: Case) -> Bracket:
    """Return a bracket from the smallest non-increasing coefficients m_i >= |c_i|, where c is the first column of C.

    Let M be the Toeplitz matrix with first column m. Then |C v| <= M |v| in every row, for any v. The earliest pattern
    0, b, 2b, ... is the worst one for M, because m is non-negative and non-increasing. Let u be 1 at the steps of this
    pattern and 0 elsewhere. Then ||M u||^2 is the upper bound, and ||C u||^2 is a lower bound, because the pattern is
    allowed. The two bounds agree if c is non-negative and non-increasing. If c violates this condition only by rounding
    errors, the bounds differ only by rounding errors.
    """
    b, k = separation(case), case.count
    lower, upper = (earliest_square(case.strategy, b, k, signs) for signs in ("signed", "majorant"))
    found = Bracket(lower, upper)
    if found.kind != "exact" and one_pass(case.strategy) is not None and has_column(case.strategy):
        # For a BLT, `upper` uses coefficients m_i computed from the buffers, which may not be the smallest.
        column = coefficients(case.strategy)
        found = Bracket(lower, min(upper, column_square(column, case.steps, b, k, "majorant")))
    return found


def earliest(case: Case) -> Bracket:
    """Return ||C u||^2, where u is 1 at the steps 0, b, 2b, ... and 0 elsewhere, if this pattern is the worst one.

    It is the worst one if the coefficients of C are non-negative and non-increasing.
    """
    found = majorant(case)
    if found.kind != "exact":
        raise NotProved(
            "The earliest pattern may not be the worst, because the coefficients of C are not all non-negative and "
            "non-increasing.",
            hint="method='majorant' gives an upper bound",
        )
    return found


def dynamic_program(case: Case) -> Bracket:
    """Return the largest sum of |X| over patterns, if X is tridiagonal on every pattern.

    X is tridiagonal if bands <= 2 * separation, or if there are at most two participations. Contributions with suitable
    signs then attain the sum of |X|.
    """
    from antiphase._kernels import separated_chain

    b, k, gram = separation(case), case.count, case.gram
    if gram.bands > 2 * b and k > 2:
        raise NotProved(
            f"Participations {2 * b} steps apart interact, because C^T C has {gram.bands} bands.",
            hint="use a strategy with at most twice as many bands as the separation",
        )
    limited = k < -(-case.steps // b)
    layers = k if limited else 1
    if layers * case.steps * max(gram.bands - b, 1) > LARGEST_CHAIN:
        raise NotProved(
            f"The dynamic program for {k} participations in {case.steps} steps takes too long.",
            hint="leave out max_participations, or use method='row-sum'",
        )
    width = max(gram.bands, b + 1)
    value, largest = np.zeros((layers, width)), np.zeros((layers, width))
    for diagonals, offset, start, stop in windows(gram):
        separated_chain(diagonals, offset, start, stop, b, value, largest, limited)
    return exactly(float(largest[:, (case.steps - 1) % width].max()))


def row_sum(case: Case) -> Bracket:
    """Return an upper bound from row sums of |X|.

    The row sum of step i is the largest sum of |X[i, j]| over the steps j of a pattern that contains i. The bound is
    the largest sum of these row sums over the steps of a pattern. It is slightly smaller than the bound of
    Choquette-Choo et al. 2023 (amplified banded), Alg. 4, whose row sums also allow patterns that do not contain i. If
    X has too many entries, each diagonal is replaced by its largest absolute entry.
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
    """Return a bracket for a block-diagonal C, from the worst way to split k participations over its blocks.

    Blocks do not interact, so each block contributes its own worst case. The separation between the last participation
    in a block and the first one in the next block is ignored. This allows more patterns, so the result is an upper
    bound. If the earliest pattern is the worst in each block and leaves enough room before the next block, the result
    is exact. If there are too many ways to split, every block gets as many participations as fit in it, but at most k.

    Args:
        case: strategy with blocks, and a minimum separation.
        solve: function that returns the bracket for a case, and the name of the method that found it.
    """
    inner, repeats, steps = case.strategy.block, case.strategy.blocks, case.strategy.block.steps
    b, k = separation(case), case.count
    most = min(k, -(-steps // b))
    if repeats * most * k > LARGEST_SHARING:
        found, method = solve(Case(inner, MinSeparation(b, most)))
        attained = method == "earliest" and steps % b == 0 and repeats * most <= k
        return Bracket(repeats * found.lower * attained, repeats * found.upper)
    parts = [solve(Case(inner, MinSeparation(b, q))) for q in range(1, most + 1)]
    upper = np.array([0.0, *(bracket.upper for bracket, _ in parts)])
    lower = np.array([0.0, *(bracket.lower * (method == "earliest") for bracket, method in parts)])
    # After a block with at most steps // b participations, a participation is allowed in the first step of the next.
    roomy = lower[: steps // b + 1]
    return Bracket(_shared(roomy, lower, repeats, k), _shared(upper, upper, repeats, k))


def _envelope_sum(case: Case) -> Bracket:
    """Return an upper bound in which each diagonal of X is replaced by its largest absolute entry.

    The row sum of a step (see `row_sum`) has terms for k - 1 other participations. They are split evenly between
    earlier and later steps. This is the worst split, because the largest sum over earlier (or later) participations is
    concave in their number.
    """
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
    """Return the largest sum of block values if `limit` participations are split over `repeats` blocks.

    Args:
        values: values[q] is the value of each block except the last, with q participations.
        last: last[q] is the value of the last block, with q participations.
        repeats: number of blocks.
        limit: total number of participations.
    """
    best = np.zeros(limit + 1)
    for block in [values] * (repeats - 1) + [last]:
        options = np.full((len(block), limit + 1), -np.inf)
        for q, value in enumerate(block):
            options[q, q:] = value + best[: limit + 1 - q]
        best = options.max(axis=0)
    return float(best[limit])
