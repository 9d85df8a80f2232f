"""The search for a plan: calibrates the noise of each proposed strategy to the budget and computes the error."""

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
from antiphase._lattice import choose_lattice, rounded_strategy
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
        make: function that creates the strategy; it may take a while.
        participation: participation to calibrate for.
        size: number of bands, buffers or repeats, for families that have a size.
        variant: short text that distinguishes proposals of the same family and size.
    """

    family: str
    make: Callable[[], Strategy]
    participation: Participation
    size: int | None = None
    variant: str = ""

    @property
    def name(self) -> str:
        """The display name of the candidate."""
        return display_name(self.family, self.size, self.variant)


@dataclass(frozen=True)
class Evaluation:
    """The result for one proposal, with just enough noise for the budget.

    Args:
        candidate: row of the plan's table.
        mechanism: the strategy with the smallest noise that keeps the budget.
        guarantee: epsilon of the mechanism at the budget's delta.
    """

    candidate: Candidate
    mechanism: Mechanism
    guarantee: Bound


class Search:
    """The state of a search: all evaluations so far, and the errors of the proposals that failed.

    Args:
        problem: problem to plan for.
        progress: called with the name of the next proposal and the fraction of the work that is done.
        memory_tolerance: fraction by which the chosen mechanism's error may exceed the least error, in exchange for
            less memory.
    """

    def __init__(self, problem: Problem, progress: Progress | None, memory_tolerance: float = 0.0) -> None:
        self.problem = problem
        self.memory_tolerance = memory_tolerance
        self.evaluations: list[Evaluation] = []
        self.refusals: list[AntiphaseError] = []
        self.share = 0.0  # fraction of the work that is done
        self.tell = progress or (lambda name, share: None)

    @property
    def least_error(self) -> float:
        """The smallest error so far."""
        return min((found.candidate.error for found in self.evaluations), default=math.inf)

    def error_of(self, family: str, size: int, participation: Participation) -> float:
        """Return the error of the candidate with this family and size and no variant, or infinity if not tried."""
        wanted = (family, size, "", participation)
        tried = (found.candidate for found in self.evaluations)
        return next((c.error for c in tried if (c.family, c.size, c.variant, c.participation) == wanted), math.inf)

    def least_multiplier(self, participation: Participation) -> float | None:
        """Return the smallest noise multiplier of the candidates under this participation; None if there are none."""
        tried = (found.candidate for found in self.evaluations)
        return min((c.noise_multiplier for c in tried if c.participation == participation), default=None)

    def attempt(self, proposal: Proposal, sampling: MonteCarlo = MonteCarlo()) -> Evaluation | None:
        """Evaluate a proposal and keep the result.

        If no guarantee is proved for the proposal, or if it needs too much memory, keeps the error and returns None.
        `sampling` states how many samples Monte Carlo accounting draws.
        """
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
                    hint="plan for fewer steps, or omit this family from families",
                )
            )
            return None
        self.evaluations.append(found)
        return found


def evaluate(proposal: Proposal, problem: Problem, sampling: MonteCarlo) -> Evaluation:
    """Find the smallest noise for which the proposal is within the budget, and compute its error.

    Raises `NotEnoughMemory` if the strategy exceeds the problem's memory limit.
    """
    start = perf_counter()
    strategy = rounded_strategy(proposal.make()) if problem.lattice else proposal.make()
    if problem.memory_copies is not None and strategy.memory_copies > problem.memory_copies:
        raise NotEnoughMemory(
            f"{proposal.name} needs {strategy.memory_copies} model-sized buffers. The problem allows "
            f"{problem.memory_copies}.",
            hint=f"use memory_copies={strategy.memory_copies} or more",
        )
    promise, budget = proposal.participation, problem.budget
    found = seeded_calibration(strategy, promise, budget, problem.adjacency, problem.examples, sampling)
    if problem.lattice:
        assert problem.parameters is not None
        given = (found.mechanism.noise_std, problem.parameters, problem.clip_norm)
        lattice = choose_lattice(strategy, promise, *given)
        found = seeded_calibration(strategy, promise, budget, problem.adjacency, problem.examples, sampling, lattice)
        lattice.check(strategy, found.mechanism.noise_std)
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


def _curve(mechanism: Mechanism, over_steps: ErrorProfile) -> tuple[float, ...]:
    """Return the error after each step in `curve_steps`, or an empty tuple for long runs, which would take too long."""
    n = mechanism.strategy.steps
    if n > MAX_STEPS_FOR_CURVE:
        return ()
    deviations = mechanism.noise_std * np.sqrt(over_steps.per_step[curve_steps(n) - 1])
    return tuple(float(f"{value:.6g}") for value in deviations)
