"""Search for banded strategies whose privacy is amplified by sampling, with as many groups of examples as bands.

The examples are split into groups that take turns, and each step samples its batch from one group. A strategy with more
bands (diagonals of the strategy matrix) cancels more noise, but it needs more groups. The groups are then smaller, so
the sampling rate within a group is higher and amplifies privacy less. With n steps, N examples, batch size B, b bands
and b groups, the rate is b * B / N, and each group is sampled n / b times. The search evaluates the best Toeplitz
strategy for several values of b. It starts with powers of two and with the rule of thumb b = epsilon * sqrt(n) / k for
k epochs. Next, it tries values between the best b and its neighbours. Finally, it optimizes every column of the
strategy matrix separately for the best b.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from antiphase._optimize import optimize
from antiphase._participation import Participation, SingleParticipation
from antiphase._planner.families import MAX_TOEPLITZ_WORK, MINUTE_BANDED_WORK, free_columns_pay
from antiphase._planner.pipelines import in_fixed_sizes, in_groups, most_groups
from antiphase._planner.search import Evaluation, Proposal, Search
from antiphase._problem import Problem
from antiphase.strategies import Identity, Strategy

MAX_REFINEMENTS = 8
BANDED_FAMILIES = {"banded", "toeplitz"}

ParticipationForBands = Callable[[int], Participation]


def try_amplified(search: Search, families: set[str], pipelines: tuple[str, ...]) -> None:
    """Try mechanisms with amplification by sampling.

    If the problem names no participation, the planner tries sampling with as many groups as bands.
    """
    problem, given = search.problem, search.problem.participation
    if given is not None:
        if given.sampling_groups is not None:
            _search(search, families, lambda bands: given, given.sampling_groups)
        return
    if "cyclic-poisson" in pipelines or "poisson" in pipelines:
        most = most_groups(problem) if "cyclic-poisson" in pipelines else 1
        _search(search, families, partial(in_groups, problem), most)
    if "fixed-size" in pipelines and problem.adjacency == "replace":  # the accounting is proved only for "replace"
        _search(search, families, partial(in_fixed_sizes, problem), most_groups(problem))


def rule_of_thumb(problem: Problem) -> int:
    """Return epsilon * sqrt(n) / k, rounded: a good number of bands for n steps and k epochs; k = 1 if unknown.

    Reference: McKenna 2024, section 4.4.
    """
    epochs = problem.epochs or 1.0
    return max(1, round(problem.budget.epsilon * math.sqrt(problem.steps) / max(epochs, 1.0)))


def _search(search: Search, families: set[str], chosen: ParticipationForBands, most: int) -> None:
    problem = search.problem
    most = min(most, problem.steps, MAX_TOEPLITZ_WORK // problem.steps)
    if problem.memory_copies is not None:
        most = min(most, problem.memory_copies + 1)
    tried: dict[int, Evaluation] = {}

    def attempt(bands: int) -> None:
        if bands not in tried and 1 <= bands <= most:
            found = search.attempt(_toeplitz(problem, bands, chosen(bands)))
            if found is not None:
                tried[bands] = found

    if "identity" in families or families & BANDED_FAMILIES:
        attempt(1)
    if not tried or not families & BANDED_FAMILIES:
        return
    for bands in sorted({1 << i for i in range(most.bit_length())} | {most, min(most, rule_of_thumb(problem))}):
        attempt(bands)
    _refine(tried, attempt)
    _free_columns(search, families, chosen, min(tried, key=lambda b: tried[b].candidate.error))


def _refine(tried: dict[int, Evaluation], attempt: Callable[[int], None]) -> None:
    """Try numbers of bands near the best one, until its distance to both neighbours is at most an eighth of it."""
    for _ in range(MAX_REFINEMENTS):
        known = sorted(tried)
        best = known.index(min(known, key=lambda b: tried[b].candidate.error))
        gaps = [(known[i], known[i + 1]) for i in (best - 1, best) if 0 <= i < len(known) - 1]
        middle = [(a + b) // 2 for a, b in gaps if b - a > max(1, known[best] // 8)]
        if not middle:
            return
        for bands in middle:
            attempt(bands)


def _toeplitz(problem: Problem, bands: int, participation: Participation) -> Proposal:
    if bands == 1:
        return Proposal("identity", partial(Identity, problem.steps), participation)
    return Proposal("toeplitz", partial(_best, "toeplitz", problem, bands=bands), participation, bands)


def _free_columns(search: Search, families: set[str], chosen: ParticipationForBands, bands: int) -> None:
    """Optimize every column separately for the best number of bands, and try Toeplitz columns scaled to norm 1."""
    problem = search.problem
    if bands == 1 or not free_columns_pay(problem.steps, bands):
        return
    if "toeplitz" in families and problem.steps * bands**2 <= MINUTE_BANDED_WORK:
        make = partial(_best, "toeplitz", problem, bands=bands, column_normalized=True)
        search.attempt(Proposal("toeplitz", make, chosen(bands), bands, "unit columns"))
    if "banded" in families:
        make = partial(_best, "banded", problem, bands=bands)
        search.attempt(Proposal("banded", make, chosen(bands), bands))


def _best(family: str, problem: Problem, **options: Any) -> Strategy:
    """Return the best strategy of a family for a single participation.

    Under a single participation, the sensitivity is the largest column norm. The accounting for sampling uses the same
    norm.
    """
    return optimize(
        family,
        steps=problem.steps,
        participation=SingleParticipation(),
        workload=problem.workload,
        objective=problem.objective,
        **options,
    ).strategy
