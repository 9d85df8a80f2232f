"""Banded strategies with amplification by sampling: how many bands, and so how many groups.

More bands cancel more noise, but an example's group is then sampled at a higher rate: b bands in b groups give rate
b B / N over n / b rounds. The best b is found by exact evaluation, first over powers of two and the rule of thumb
epsilon sqrt(n) / k, then between the neighbours of the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from time import perf_counter

from antiphase._optimize import optimize
from antiphase._participation import CyclicPoisson, FixedSize, Participation, Poisson, SingleParticipation
from antiphase._planner._pipelines import in_groups, most_groups, sizes
from antiphase._planner._trial import Outcome, Trial, evaluate
from antiphase._problem import Problem
from antiphase.strategies import Identity, Strategy

REFINEMENTS = 8
LARGEST_BANDED = 1 << 26  # steps x bands^2

Chosen = Callable[[int], Participation]


def amplified(problem: Problem, families: set[str]) -> Iterator[Outcome]:
    """Outcomes for the participation given, or for as many groups as bands where it is open."""
    given = problem.participation
    if given is None:
        sizes(problem)
        yield from _search(problem, families, lambda bands: in_groups(problem, bands), most_groups(problem))
    elif isinstance(given, (CyclicPoisson, FixedSize)):
        yield from _search(problem, families, lambda bands: given, given.groups)
    elif isinstance(given, Poisson):
        yield from _search(problem, families, lambda bands: given, 1)


def rule_of_thumb(problem: Problem) -> int:
    """Bands near epsilon sqrt(n) / k (McKenna 2024, section 4.4), where the epochs k are known."""
    epochs = problem.epochs or 1.0
    return max(1, round(problem.budget.epsilon * math.sqrt(problem.steps) / max(epochs, 1.0)))


def _search(problem: Problem, families: set[str], chosen: Chosen, most: int) -> Iterator[Outcome]:
    most = min(most, problem.steps)
    if problem.memory_copies is not None:
        most = min(most, problem.memory_copies + 1)
    tried: dict[int, Outcome] = {}

    def attempt(bands: int) -> None:
        if bands in tried or not 1 <= bands <= most:
            return
        found = evaluate(_toeplitz(problem, bands, chosen(bands)), problem)
        if found is not None:
            tried[bands] = found

    if "identity" in families:
        attempt(1)
    if families & {"banded", "toeplitz"}:
        for bands in sorted({1 << i for i in range(most.bit_length())} | {most, min(most, rule_of_thumb(problem))}):
            attempt(bands)
        _refine(tried, attempt)
    yield from tried.values()
    if tried and "banded" in families:
        yield from _banded(problem, chosen, min(tried, key=lambda b: tried[b].candidate.error))


def _refine(tried: dict[int, Outcome], attempt: Callable[[int], None]) -> None:
    """Halve the gaps on both sides of the best number of bands."""
    for _ in range(REFINEMENTS):
        known = sorted(tried)
        if not known:
            return
        best = known.index(min(known, key=lambda b: tried[b].candidate.error))
        gaps = [(known[i], known[i + 1]) for i in (best - 1, best) if 0 <= i < len(known) - 1]
        middle = [(a + b) // 2 for a, b in gaps if b - a > max(1, known[best] // 8)]
        if not middle:
            return
        for bands in middle:
            attempt(bands)


def _toeplitz(problem: Problem, bands: int, participation: Participation) -> Trial:
    start = perf_counter()
    strategy: Strategy = Identity(problem.steps)
    if bands > 1:
        strategy = optimize(
            "toeplitz",
            steps=problem.steps,
            participation=SingleParticipation(),
            workload=problem.workload,
            objective=problem.objective,
            bands=bands,
            column_normalized=True,
        ).strategy
    name = "identity (DP-SGD)" if bands == 1 else f"toeplitz ({bands} bands, unit columns)"
    return Trial(name, strategy, participation, perf_counter() - start)


def _banded(problem: Problem, chosen: Chosen, bands: int) -> Iterator[Outcome]:
    if bands == 1 or problem.steps * bands**2 > LARGEST_BANDED:
        return
    start = perf_counter()
    solution = optimize(
        "banded",
        steps=problem.steps,
        participation=SingleParticipation(),
        workload=problem.workload,
        objective=problem.objective,
        bands=bands,
    )
    trial = Trial(f"banded ({bands} bands)", solution.strategy, chosen(bands), perf_counter() - start)
    found = evaluate(trial, problem)
    if found is not None:
        yield found
