"""Sensitivity: the largest ||C u|| over all contributions u that one example can make."""

from __future__ import annotations

import math

import numpy as np

from antiphase._bound import Bound
from antiphase._check import invalid
from antiphase._errors import NotProved, enough_memory
from antiphase._participation import Deterministic, Participation
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase._sensitivity.norms import column_norms
from antiphase._sensitivity.rounding import outward
from antiphase._sensitivity.table import METHODS, methods, page, roundings, solve
from antiphase._sensitivity.toeplitz import check_one_pass, coefficients, earliest_blocks
from antiphase.strategies import Strategy, check_square

__all__ = [
    "check_one_pass",
    "coefficients",
    "column_norms",
    "earliest_blocks",
    "measured",
    "page",
    "sensitivity",
]


def sensitivity(strategy: Strategy, participation: Participation, method: str | None = None) -> Bound:
    """Return the sensitivity: the largest ||C u|| over all contributions u that one example can make.

    A pattern is a set of steps in which one example takes part. The example contributes a vector of norm at most 1 in
    each step of its pattern and nothing in other steps. Let K[i, j] be the inner product of the contributions in steps
    i and j. Then ||C u||^2 = tr(X K), where X is C^T C restricted to the steps of the pattern. This is largest for
    contributions of norm 1, for which K is a correlation matrix (positive semidefinite with unit diagonal):

        sens^2 = max of tr(X K) over all patterns and all correlation matrices K.

    **Guarantee**: the returned value is never below the true sensitivity, for contributions of any dimension under
    zero-out adjacency. Under replace adjacency, the sensitivity is twice as large. The value is raised to cover
    rounding errors, by a relative amount of about 1e-14 for tens of bands and about 1e-12 for a dense matrix with a
    thousand steps. If the bound is of kind "exact", some contributions of large enough dimension reach its value, up to
    this relative amount. Any other bound is of kind "upper".

    Args:
        strategy: strategy matrix, C.
        participation: steps in which one example takes part; a random participation is replaced by its worst case.
        method: name of a method in docs/sensitivity.md; None for the best one.

    >>> from antiphase import FixedEpochs, MinSeparation
    >>> from antiphase.strategies import Toeplitz, Tree
    >>> round(sensitivity(Toeplitz([1.0, 0.5], 6), FixedEpochs(3, 2)).value ** 2, 9)
    3.75
    >>> round(sensitivity(Tree(16), MinSeparation(3, 5)).value ** 2, 9)
    57.0

    Reference: Choquette-Choo et al. 2023 (multi-epoch), section 2; each bound names its theorem.
    """
    return measured(strategy, participation, method)[0]


def measured(strategy: Strategy, participation: Participation, method: str | None = None) -> tuple[Bound, float]:
    """Return the sensitivity as a bound, and its value before it was raised to cover rounding errors.

    Accounting uses the bound. Calibration uses the value before it was raised. A later version of the library may raise
    the value by a different amount. Then the last digits of epsilon change, but the noise stays the same, so planning
    again gives the same plan.
    """
    case = Case(*_checked(strategy, participation))
    memory = enough_memory(f"compute the sensitivity for {case.steps:,} steps", hint="use fewer steps")
    with memory, np.errstate(over="ignore", invalid="ignore"):
        try:
            bracket, name = solve(case) if method is None else (_named(case, method), method)
        except np.linalg.LinAlgError:  # eigenvalue routines raise it if the Gram matrix has overflowed
            bracket, name = Bracket(math.inf, math.inf), ""
    check_square(bracket.upper)
    reference = METHODS[type(case.participation)][name].reference
    value = outward(bracket.upper, roundings(case, name, bracket.upper))
    return Bound(value, bracket.kind, name, reference), math.sqrt(bracket.upper)


def _checked(strategy: Strategy, participation: Participation) -> tuple[Strategy, Deterministic]:
    if not isinstance(strategy, Strategy):
        raise invalid("sensitivity", "strategy", "a strategy", strategy, "for a matrix use strategies.Dense(matrix)")
    if not isinstance(participation, Participation):
        raise invalid(
            "sensitivity", "participation", "a participation", participation, "pass for example SingleParticipation()"
        )
    worst = participation.worst_case
    if type(worst) not in METHODS:
        raise NotProved(
            f"No sensitivity is known for {type(worst).__name__}.",
            hint=f"use one of {', '.join(known.__name__ for known in METHODS)}",
        )
    worst.largest_count(strategy.steps)  # raises an error if the participation has fewer steps
    return strategy, worst


def _named(case: Case, name: str) -> Bracket:
    known = METHODS[type(case.participation)]
    if name not in known:
        raise invalid("sensitivity", "method", f"one of {', '.join(known)}", name, "use None for the best method")
    offered = methods(case.strategy, case.participation)
    pair = f"{type(case.strategy).__name__} under {type(case.participation).__name__}"
    if name not in offered:
        raise NotProved(f"The method {name!r} does not support {pair}.", hint=f"use one of {', '.join(offered)}")
    try:
        return offered[name].run(case)
    except NotProved as error:
        works = solve(case)[1]
        raise NotProved(
            f"The method {name!r} does not apply here. {error.message}", hint=f"use method={works!r}, which applies"
        ) from error
