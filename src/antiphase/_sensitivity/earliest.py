"""Minimum separation for Toeplitz strategies: the earliest pattern."""

from __future__ import annotations

from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase._sensitivity.separated import separation
from antiphase._sensitivity.toeplitz import coefficients, column_fits, column_square, earliest_square
from antiphase.strategies import BLT


def majorant(case: Case) -> Bracket:
    """The earliest pattern for the smallest non-increasing m_i >= |c_i|.

    |C u| <= M |u| row by row, and for M, non-negative and non-increasing, the pattern 0, b, 2b, ... is the worst. The
    same pattern for C itself is allowed, so its value lies below. Both are the same number where c is non-negative
    and non-increasing; signs that only rounding gives move them apart by rounding only.
    """
    b, k = separation(case), case.count
    lower, upper = (earliest_square(case.strategy, b, k, signs) for signs in ("signed", "majorant"))
    found = Bracket(lower, upper)
    if found.kind != "exact" and isinstance(case.strategy, BLT) and column_fits(case.strategy):
        column = coefficients(case.strategy)  # scales of both signs may still give a column that decreases
        found = Bracket(lower, min(upper, column_square(column, case.steps, b, k, "majorant")))
    return found


def earliest(case: Case) -> Bracket:
    """The pattern 0, b, 2b, ... is the worst for non-negative, non-increasing coefficients."""
    found = majorant(case)
    if found.kind != "exact":
        raise NotProved(
            "The coefficients of C are not non-negative and non-increasing, so the earliest pattern need not be worst.",
            hint="method='majorant' gives an upper bound",
        )
    return found
