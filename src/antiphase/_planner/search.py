"""The search for a plan: each proposed strategy is calibrated to the budget and its error measured."""

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
from antiphase._plan import Candidate, curve_steps, display_name
from antiphase._problem import Problem
from antiphase.strategies import Strategy

Progress = Callable[[str, float], None]

MAX_STEPS_FOR_CURVE = 65_536


@dataclass(frozen=True)
class Proposal:
    """A strategy to try under a participation.

    Args:
        family: family of the strategy.
        make: builds the strategy, which may take a while.
        participation: participation to calibrate for.
        size: number of bands, buffers or repeats, for families that have a size.
        variant: what sets it apart from others of the same family and size, in words.
    """

    family: str
    make: Callable[[], Strategy]
    participation: Participation
    size: int | None = None
    variant: str = ""

    @property
    def name(self) -> str:
        """The display name of the candidate it becomes."""
        return display_name(self.family, self.size, self.variant)


@dataclass(frozen=True)
class Evaluation:
    """A proposal calibrated to the budget: its row in the table, the mechanism and its guarantee."""

    candidate: Candidate
    mechanism: Mechanism
    guarantee: Bound


class Search:
    """All evaluations so far, and the reasons why other proposals failed.

    Args:
        problem: problem to plan for.
        progress: called with the name of the next proposal and the fraction of the work that is done.
    """

    def __init__(self, problem: Problem, progress: Progress | None) -> None:
        self.problem = problem
        self.evaluations: list[Evaluation] = []
        self.refusals: list[AntiphaseError] = []
        self.share = 0.0
        self.tell = progress or (lambda name, share: None)

    @property
    def least_error(self) -> float:
        """The smallest error so far."""
        return min((found.candidate.error for found in self.evaluations), default=math.inf)

    def error_of(self, family: str, size: int, participation: Participation) -> float:
        """The error of a candidate without a variant; infinite if it was not tried."""
        wanted = (family, size, "", participation)
        tried = (found.candidate for found in self.evaluations)
        return next((c.error for c in tried if (c.family, c.size, c.variant, c.participation) == wanted), math.inf)

    def least_multiplier(self, participation: Participation) -> float | None:
        """The smallest noise multiplier of any candidate under this participation; None if there is no candidate."""
        tried = (found.candidate for found in self.evaluations)
        return min((c.noise_multiplier for c in tried if c.participation == participation), default=None)

    def attempt(self, proposal: Proposal, sampling: MonteCarlo = MonteCarlo()) -> Evaluation | None:
        """Evaluate a proposal and keep the result; return None if nothing is proved for it or memory is too small."""
        self.tell(proposal.name, self.share)
        try:
            found = evaluate(proposal, self.problem, sampling)
        except (NotProved, NotEnoughMemory) as error:
            self.refusals.append(error)
            return None
        except MemoryError:
            self.refusals.append(
                NotEnoughMemory(
                    f"{proposal.name} with {self.problem.steps:,} steps does not fit in the memory of this machine.",
                    hint="plan for fewer steps, or leave this family out",
                )
            )
            return None
        self.evaluations.append(found)
        return found


def evaluate(proposal: Proposal, problem: Problem, sampling: MonteCarlo) -> Evaluation:
    """Calibrate a proposal: find the least noise that keeps the budget."""
    start = perf_counter()
    strategy = proposal.make()
    if problem.memory_copies is not None and strategy.memory_copies > problem.memory_copies:
        raise NotEnoughMemory(
            f"{proposal.name} needs {strategy.memory_copies} model-sized buffers. The problem allows "
            f"{problem.memory_copies}.",
            hint=f"the nearest problem that works has memory_copies={strategy.memory_copies}",
        )
    promise, budget = proposal.participation, problem.budget
    found = seeded_calibration(strategy, promise, budget, problem.adjacency, problem.examples, sampling)
    mechanism = found.mechanism
    over_steps = error(strategy, problem.workload)
    candidate = Candidate(
        family=proposal.family,
        size=proposal.size,
        variant=proposal.variant,
        error=mechanism.noise_std * error(strategy, problem.workload, problem.objective).value,
        noise_std=mechanism.noise_std,
        noise_multiplier=mechanism.effective_noise_multiplier,
        epsilon=found.guarantee.value,
        kind=found.guarantee.kind,
        memory_copies=strategy.memory_copies,
        seconds=perf_counter() - start,
        participation=proposal.participation,
        per_step=_curve(mechanism, over_steps),
        rms_error=mechanism.noise_std * over_steps.rms,
    )
    return Evaluation(candidate, mechanism, found.guarantee)


def _curve(mechanism: Mechanism, size: ErrorProfile) -> tuple[float, ...]:
    """The error at `curve_steps`; empty for long runs, where it would take longer than everything else."""
    n = mechanism.strategy.steps
    if n > MAX_STEPS_FOR_CURVE:
        return ()
    deviations = mechanism.noise_std * np.sqrt(size.per_step[curve_steps(n) - 1])
    return tuple(float(f"{value:.6g}") for value in deviations)
