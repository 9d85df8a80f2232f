"""Computes epsilon with the planned noise, for runs with more steps or a smaller separation than planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from antiphase._accounting import compose, epsilon
from antiphase._bound import Bound
from antiphase._errors import AntiphaseError
from antiphase._participation import FixedEpochs, MinSeparation
from antiphase._plan import Plan

STEP_FACTORS = (1.25, 1.5, 2.0)
SEPARATION_SHARES = (1.0, 0.9, 0.75, 0.5)


@dataclass(frozen=True)
class Change:
    """A change to the plan.

    Args:
        what: description of the change.
        bound: epsilon with this change; None if it cannot be computed.
        reason: why the bound is None.
    """

    what: str
    bound: Bound | None
    reason: str = ""


def more_steps(plan: Plan) -> Iterator[Change]:
    """Yield the epsilon of longer runs with the same noise, and of a second run of the same plan."""
    for factor in STEP_FACTORS:
        steps = -int(-factor * plan.steps // 1)
        yield _change(f"{steps:,} steps instead of {plan.steps:,}", partial(_extended, plan, steps))
    twice = partial(compose, [plan.mechanism, plan.mechanism], plan.problem.budget.delta)
    yield _change("a second run of the same plan on the same data", twice)


def smaller_separation(plan: Plan) -> Iterator[Change]:
    """Yield epsilon for smaller separations with the same noise; nothing if no separation affects the guarantee."""
    worst = plan.mechanism.participation.worst_case
    if plan.mechanism.participation is not worst or not isinstance(worst, (FixedEpochs, MinSeparation)):
        return
    promised = worst.steps_per_epoch if isinstance(worst, FixedEpochs) else worst.separation
    limit = worst.max_participations if isinstance(worst, MinSeparation) else None
    shares = SEPARATION_SHARES if isinstance(worst, FixedEpochs) else SEPARATION_SHARES[1:]
    for b in dict.fromkeys(max(1, int(share * promised)) for share in shares):
        real = replace(plan.mechanism, participation=MinSeparation(b, limit))
        planned = "exactly" if isinstance(worst, FixedEpochs) else "at least"
        what = f"at least {b:,} steps apart instead of {planned} {promised:,}"
        yield _change(what, partial(epsilon, real, plan.problem.budget.delta))


def _extended(plan: Plan, steps: int) -> Bound:
    return plan.extend(steps).guarantee


def _change(what: str, bound: Callable[[], Bound]) -> Change:
    try:
        return Change(what, bound())
    except AntiphaseError as error:
        return Change(what, None, error.message)
