"""A mechanism on trial: a strategy under a participation, calibrated to the budget and measured."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from antiphase._accounting import Mechanism, calibrate
from antiphase._bound import Bound
from antiphase._error import error
from antiphase._errors import NotProved
from antiphase._participation import Participation
from antiphase._plan import Candidate
from antiphase._problem import Problem
from antiphase.strategies import Strategy


@dataclass(frozen=True)
class Trial:
    """What to try, and how long it took to find.

    Args:
        name: family and size.
        strategy: C.
        participation: the sampler it would run with.
        seconds: spent optimising.
    """

    name: str
    strategy: Strategy
    participation: Participation
    seconds: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A trial that keeps the budget."""

    candidate: Candidate
    mechanism: Mechanism
    guarantee: Bound


def evaluate(trial: Trial, problem: Problem) -> Outcome | None:
    """The trial with the least noise that keeps the budget; None where no guarantee is proved or memory is short."""
    if problem.memory_copies is not None and trial.strategy.memory_copies > problem.memory_copies:
        return None
    start = perf_counter()
    try:
        found = calibrate(trial.strategy, trial.participation, problem.budget, problem.adjacency, problem.examples)
    except NotProved:
        return None
    mechanism = found.mechanism
    size = error(trial.strategy, problem.workload)
    candidate = Candidate(
        name=trial.name,
        error=mechanism.noise_std * (size.rms if problem.objective == "rms" else size.max),
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.effective_noise_multiplier,
        epsilon=found.guarantee.value,
        kind=found.guarantee.kind,
        memory_copies=trial.strategy.memory_copies,
        seconds=trial.seconds + perf_counter() - start,
        participation=repr(trial.participation),
    )
    return Outcome(candidate, mechanism, found.guarantee)
