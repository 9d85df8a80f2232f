"""A mechanism on trial: a strategy under a participation, calibrated to the budget and measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from antiphase._accounting import Mechanism, seeded_calibration
from antiphase._bound import Bound
from antiphase._error import ErrorProfile, error
from antiphase._errors import AntiphaseError, NotEnoughMemory, NotProved
from antiphase._montecarlo import MonteCarlo
from antiphase._participation import Participation
from antiphase._plan import Candidate, curve_steps
from antiphase._problem import Problem
from antiphase.strategies import Strategy

Progress = Callable[[str, float], None]

LARGEST_CURVE = 65_536  # steps


@dataclass(frozen=True)
class Trial:
    """What to try.

    Args:
        name: family and size.
        make: finds the strategy; it may take a while.
        participation: the sampler it would run with.
    """

    name: str
    make: Callable[[], Strategy]
    participation: Participation


@dataclass(frozen=True)
class Outcome:
    """A trial that keeps the budget."""

    candidate: Candidate
    mechanism: Mechanism
    guarantee: Bound


class Trials:
    """The outcomes of all trials so far, and why others have none.

    Args:
        problem: what to train and what it may cost.
        progress: called with the name of what is tried and the share of the work that is done.
    """

    def __init__(self, problem: Problem, progress: Progress | None) -> None:
        self.problem = problem
        self.outcomes: list[Outcome] = []
        self.refusals: list[AntiphaseError] = []
        self.share = 0.0
        self.tell = progress or (lambda name, share: None)

    @property
    def least_error(self) -> float:
        """The error of the best so far."""
        return min((found.candidate.error for found in self.outcomes), default=math.inf)

    def error(self, name: str, participation: Participation) -> float:
        """The error of a candidate that was tried, infinite where it was not."""
        tried = (found.candidate for found in self.outcomes)
        return next((c.error for c in tried if (c.name, c.participation) == (name, repr(participation))), math.inf)

    def least_multiplier(self, participation: Participation) -> float | None:
        """The least noise of a candidate under this participation, in multiples of its sensitivity."""
        tried = (found.candidate for found in self.outcomes)
        return min((c.noise_multiplier for c in tried if c.participation == repr(participation)), default=None)

    def attempt(self, trial: Trial, sampling: MonteCarlo = MonteCarlo()) -> Outcome | None:
        """The trial with the least noise that keeps the budget; None where nothing is proved or memory is short."""
        self.tell(trial.name, self.share)
        try:
            found = evaluate(trial, self.problem, sampling)
        except (NotProved, NotEnoughMemory) as error:
            self.refusals.append(error)
            return None
        except MemoryError:
            self.refusals.append(
                NotEnoughMemory(
                    f"{trial.name} with {self.problem.steps:,} steps does not fit in the memory of this machine.",
                    hint="plan for fewer steps, or leave this family out",
                )
            )
            return None
        self.outcomes.append(found)
        return found


def evaluate(trial: Trial, problem: Problem, sampling: MonteCarlo) -> Outcome:
    """The trial with the least noise that keeps the budget."""
    start = perf_counter()
    strategy = trial.make()
    if problem.memory_copies is not None and strategy.memory_copies > problem.memory_copies:
        raise NotEnoughMemory(
            f"{trial.name} needs {strategy.memory_copies} model-sized buffers. The problem allows "
            f"{problem.memory_copies}.",
            hint=f"the nearest problem that works has memory_copies={strategy.memory_copies}",
        )
    promise, budget = trial.participation, problem.budget
    found = seeded_calibration(strategy, promise, budget, problem.adjacency, problem.examples, sampling)
    mechanism = found.mechanism
    size = error(strategy, problem.workload)
    candidate = Candidate(
        name=trial.name,
        error=mechanism.noise_std * (size.rms if problem.objective == "rms" else size.max),
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.effective_noise_multiplier,
        epsilon=found.guarantee.value,
        kind=found.guarantee.kind,
        memory_copies=strategy.memory_copies,
        seconds=perf_counter() - start,
        participation=repr(trial.participation),
        per_step=_curve(mechanism, size),
    )
    return Outcome(candidate, mechanism, found.guarantee)


def _curve(mechanism: Mechanism, size: ErrorProfile) -> tuple[float, ...]:
    """The error after some of the steps; for many steps it would take longer than all the rest."""
    n = mechanism.strategy.steps
    if n > LARGEST_CURVE:
        return ()
    deviations = mechanism.noise_std * np.sqrt(size.per_step[curve_steps(n) - 1])
    return tuple(float(f"{value:.6g}") for value in deviations)
