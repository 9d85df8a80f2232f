"""What to say where no mechanism fits: the nearest problem that would work."""

from __future__ import annotations

from antiphase._errors import AntiphaseError, NotProved, Refused
from antiphase._planner.families import least_copies
from antiphase._planner.trial import Trials


def nothing_fits(trials: Trials, families: set[str]) -> AntiphaseError:
    """The error for a problem without a plan."""
    problem = trials.problem
    limit = problem.memory_copies
    least = min(least_copies(family, problem.steps, problem.participation) for family in families)
    names = ", ".join(sorted(families))
    if limit is not None and least > limit:
        return Refused(
            f"No mechanism of {names} fits into memory_copies={limit}.",
            hint=f"the nearest problem that works has memory_copies={least}; family identity needs none",
        )
    proofs = [error for error in trials.refusals if isinstance(error, NotProved)]
    if proofs:
        return NotProved(f"No mechanism of {names} fits. {proofs[0].message}", hint=proofs[0].hint)
    if trials.refusals:
        return Refused(f"No mechanism of {names} fits. {trials.refusals[0].message}", hint=trials.refusals[0].hint)
    return NotProved(
        f"No mechanism of {names} can be tried with {problem.participation or 'these pipelines'} and {problem.steps} "
        "steps.",
        hint="leave families out to try all; with sampling only identity, toeplitz and banded are covered",
    )
