"""Participations whose amplification is accounted for by Monte Carlo: balls-in-bins and random min-separation.

Accounting for one mechanism takes seconds, so only a few are compared: the best of each family without amplification,
and under balls-in-bins also strategies optimized for the amplified noise. They are compared with few samples; the best
is then calibrated with many.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from antiphase._montecarlo import MonteCarlo
from antiphase._optimize import optimize
from antiphase._participation import BallsInBins, Participation, PoissonMinSeparation
from antiphase._planner.families import FAMILIES, QUICK_BANDED_WORK, affords
from antiphase._planner.search import Evaluation, Proposal, Search
from antiphase._problem import Problem
from antiphase.strategies import Strategy

COARSE = MonteCarlo(slack=0.2)
BLT_BUFFERS = 3


def needs_monte_carlo(participation: Participation) -> bool:
    """Whether the accounting draws samples."""
    return isinstance(participation, (BallsInBins, PoissonMinSeparation))


def try_monte_carlo(search: Search, families: set[str], participation: Participation) -> None:
    """Try the few mechanisms worth the time."""
    problem, before = search.problem, len(search.evaluations)
    for proposal in [*_unamplified(search, families, participation), *_amplified(problem, families, participation)]:
        search.attempt(proposal, COARSE)
    found = search.evaluations[before:]
    if found:
        best = min(found, key=lambda evaluation: evaluation.candidate.error)
        search.evaluations.remove(best)
        search.attempt(_again(best, participation))


def _unamplified(search: Search, families: set[str], participation: Participation) -> list[Proposal]:
    """The best of each family for the worst case, which is quick to account for."""
    problem = replace(search.problem, adjacency="zero-out", participation=participation.worst_case, batch_size=None)
    kept = []
    for name, family in FAMILIES.items():
        if name in families:
            draft = Search(problem, search.tell)
            draft.share = search.share
            family(draft, participation.worst_case)
            if draft.evaluations:
                best = min(draft.evaluations, key=lambda evaluation: evaluation.candidate.error)
                kept.append(_again(best, participation))
    return kept


def _amplified(problem: Problem, families: set[str], participation: Participation) -> list[Proposal]:
    """Strategies optimized for the amplified noise that the budget needs."""
    if not isinstance(participation, BallsInBins) or participation.max_batch is not None:
        return []
    widest = min(problem.steps, 2 * participation.steps_per_epoch)
    if problem.memory_copies is not None:
        widest = min(widest, problem.memory_copies + 1)
    made = []
    if "toeplitz" in families and widest > 1 and problem.steps * widest**2 <= QUICK_BANDED_WORK:
        make = partial(_best, "toeplitz", problem, participation, bands=widest)
        made.append(Proposal("toeplitz", make, participation, widest, "for the bins"))
    if "blt" in families and affords(problem, BLT_BUFFERS):
        make = partial(_best, "blt", problem, participation, buffers=BLT_BUFFERS)
        made.append(Proposal("blt", make, participation, BLT_BUFFERS, "for the bins"))
    return made


def _best(family: str, problem: Problem, participation: Participation, **options: Any) -> Strategy:
    return optimize(
        family,
        steps=problem.steps,
        participation=participation,
        workload=problem.workload,
        objective=problem.objective,
        budget=problem.budget,
        **options,
    ).strategy


def _again(found: Evaluation, participation: Participation) -> Proposal:
    """Propose a strategy that was found before."""
    candidate, strategy = found.candidate, found.mechanism.strategy
    return Proposal(candidate.family, lambda: strategy, participation, candidate.size, candidate.variant)
