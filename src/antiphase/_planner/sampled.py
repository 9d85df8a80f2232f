"""Participations whose amplification takes samples to account for, balls-in-bins and random min-separation.

Accounting for one mechanism takes seconds, so few are compared: the best of every family without amplification, and
under balls-in-bins those that are optimised for the amplified noise. They are compared with few samples; the best is
then calibrated with many.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from antiphase._montecarlo import MonteCarlo
from antiphase._optimize import optimize
from antiphase._participation import BallsInBins, Participation, PoissonMinSeparation
from antiphase._planner.families import FAMILIES, QUICK_BANDED, affords
from antiphase._planner.trial import Trial, Trials
from antiphase._problem import Problem
from antiphase.strategies import Strategy

FEW_SAMPLES = MonteCarlo(slack=0.2)
BUFFERS = 3


def takes_samples(participation: Participation) -> bool:
    """Whether accounting draws samples."""
    return isinstance(participation, (BallsInBins, PoissonMinSeparation))


def compare_sampled(trials: Trials, families: set[str], participation: Participation) -> None:
    """Try the few that are worth it."""
    problem, before = trials.problem, len(trials.outcomes)
    for trial in [*_unamplified(trials, families, participation), *_amplified(problem, families, participation)]:
        trials.attempt(trial, FEW_SAMPLES)
    found = trials.outcomes[before:]
    if found:
        best = min(found, key=lambda outcome: outcome.candidate.error)
        trials.outcomes.remove(best)
        trials.attempt(Trial(best.candidate.name, partial(_same, best.mechanism.strategy), participation))


def _unamplified(trials: Trials, families: set[str], participation: Participation) -> list[Trial]:
    """The best of every family for the worst case, which is quick to account for."""
    problem = replace(trials.problem, adjacency="zero-out", participation=participation.worst_case, batch_size=None)
    kept = []
    for name, family in FAMILIES.items():
        if name in families:
            draft = Trials(problem, trials.tell)
            draft.share = trials.share
            family(draft, participation.worst_case)
            if draft.outcomes:
                best = min(draft.outcomes, key=lambda outcome: outcome.candidate.error)
                kept.append(Trial(best.candidate.name, partial(_same, best.mechanism.strategy), participation))
    return kept


def _amplified(problem: Problem, families: set[str], participation: Participation) -> list[Trial]:
    """Strategies optimised for the noise that the budget needs."""
    if not isinstance(participation, BallsInBins) or participation.max_batch is not None:
        return []
    widest = min(problem.steps, 2 * participation.steps_per_epoch)
    if problem.memory_copies is not None:
        widest = min(widest, problem.memory_copies + 1)
    made = []
    if "toeplitz" in families and widest > 1 and problem.steps * widest**2 <= QUICK_BANDED:
        make = partial(_best, "toeplitz", problem, participation, bands=widest)
        made.append(Trial("toeplitz, for the bins", make, participation))
    if "blt" in families and affords(problem, BUFFERS):
        make = partial(_best, "blt", problem, participation, buffers=BUFFERS)
        made.append(Trial(f"blt ({BUFFERS} buffers), for the bins", make, participation))
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


def _same(strategy: Strategy) -> Strategy:
    return strategy
