"""Minimum separation for repeated strategies: participations shared out among the blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._participation import MinSeparation
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase._sensitivity.separated import separation
from antiphase.strategies import Stamped

LARGEST_SHARING = 1 << 27
Solve = Callable[[Case], tuple[Bracket, str]]


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


def _shared(values: Array, last: Array, repeats: int, limit: int) -> float:
    """The largest sum of values over `repeats` blocks, the last with its own values, counts adding to the limit."""
    best = np.zeros(limit + 1)
    for block in [values] * (repeats - 1) + [last]:
        options = np.full((len(block), limit + 1), -np.inf)
        for q, value in enumerate(block):
            options[q, q:] = value + best[: limit + 1 - q]
        best = options.max(axis=0)
    return float(best[limit])
