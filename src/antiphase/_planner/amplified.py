"""Banded strategies with amplification by sampling: how many bands, and so how many groups.

More bands cancel more noise, but an example's group is then sampled at a higher rate: b bands in b groups give rate
b B / N over n / b rounds. The best b is found by exact evaluation of the best Toeplitz strategy, first over powers of
two and the rule of thumb epsilon sqrt(n) / k, then between the neighbours of the best; for the best b every column is
then set free.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from antiphase._optimize import optimize
from antiphase._participation import Participation, SingleParticipation
from antiphase._planner.families import LARGEST_TOEPLITZ, MINUTE_BANDED, free_columns_pay
from antiphase._planner.pipelines import in_fixed_sizes, in_groups, most_groups
from antiphase._planner.trial import Outcome, Trial, Trials
from antiphase._problem import Problem
from antiphase.strategies import Identity, Strategy

REFINEMENTS = 8
BANDED = {"banded", "toeplitz"}

Chosen = Callable[[int], Participation]


def amplified(trials: Trials, families: set[str], pipelines: tuple[str, ...]) -> None:
    """Try the sampling given, or as many groups as bands where it is open."""
    problem, given = trials.problem, trials.problem.participation
    if given is not None:
        if given.sampling_groups is not None:
            _search(trials, families, lambda bands: given, given.sampling_groups)
        return
    if "cyclic-poisson" in pipelines or "poisson" in pipelines:
        most = most_groups(problem) if "cyclic-poisson" in pipelines else 1
        _search(trials, families, partial(in_groups, problem), most)
    if "fixed-size" in pipelines and problem.adjacency == "replace":  # the only one for which it is proved
        _search(trials, families, partial(in_fixed_sizes, problem), most_groups(problem))


def rule_of_thumb(problem: Problem) -> int:
    """Bands near epsilon sqrt(n) / k (McKenna 2024, section 4.4), where the epochs k are known."""
    epochs = problem.epochs or 1.0
    return max(1, round(problem.budget.epsilon * math.sqrt(problem.steps) / max(epochs, 1.0)))


def _search(trials: Trials, families: set[str], chosen: Chosen, most: int) -> None:
    problem = trials.problem
    most = min(most, problem.steps, LARGEST_TOEPLITZ // problem.steps)
    if problem.memory_copies is not None:
        most = min(most, problem.memory_copies + 1)
    tried: dict[int, Outcome] = {}

    def attempt(bands: int) -> None:
        if bands not in tried and 1 <= bands <= most:
            found = trials.attempt(_toeplitz(problem, bands, chosen(bands)))
            if found is not None:
                tried[bands] = found

    if "identity" in families or families & BANDED:
        attempt(1)
    if not tried or not families & BANDED:
        return
    for bands in sorted({1 << i for i in range(most.bit_length())} | {most, min(most, rule_of_thumb(problem))}):
        attempt(bands)
    _refine(tried, attempt)
    _free_columns(trials, families, chosen, min(tried, key=lambda b: tried[b].candidate.error))


def _refine(tried: dict[int, Outcome], attempt: Callable[[int], None]) -> None:
    """Halve the gaps on both sides of the best number of bands, down to an eighth of it."""
    for _ in range(REFINEMENTS):
        known = sorted(tried)
        best = known.index(min(known, key=lambda b: tried[b].candidate.error))
        gaps = [(known[i], known[i + 1]) for i in (best - 1, best) if 0 <= i < len(known) - 1]
        middle = [(a + b) // 2 for a, b in gaps if b - a > max(1, known[best] // 8)]
        if not middle:
            return
        for bands in middle:
            attempt(bands)


def _toeplitz(problem: Problem, bands: int, participation: Participation) -> Trial:
    if bands == 1:
        return Trial("identity (DP-SGD)", partial(Identity, problem.steps), participation)
    return Trial(f"toeplitz ({bands} bands)", partial(_best, "toeplitz", problem, bands=bands), participation)


def _free_columns(trials: Trials, families: set[str], chosen: Chosen, bands: int) -> None:
    """Columns that differ from one another for the best number of bands; as a quick special case, of norm 1 alone."""
    problem = trials.problem
    if bands == 1 or not free_columns_pay(problem.steps, bands):
        return
    if "toeplitz" in families and problem.steps * bands**2 <= MINUTE_BANDED:
        make = partial(_best, "toeplitz", problem, bands=bands, column_normalized=True)
        trials.attempt(Trial(f"toeplitz ({bands} bands, unit columns)", make, chosen(bands)))
    if "banded" in families:
        make = partial(_best, "banded", problem, bands=bands)
        trials.attempt(Trial(f"banded ({bands} bands)", make, chosen(bands)))


def _best(family: str, problem: Problem, **options: Any) -> Strategy:
    """The best strategy for its largest column norm, which is what sampling amplifies."""
    return optimize(
        family,
        steps=problem.steps,
        participation=SingleParticipation(),
        workload=problem.workload,
        objective=problem.objective,
        **options,
    ).strategy
