"""Loss: sensitivity times error, what is compared between mechanisms without amplification."""

from __future__ import annotations

from typing import Literal, get_args

from antiphase._check import invalid
from antiphase._error import error
from antiphase._participation import Participation
from antiphase._sensitivity import sensitivity
from antiphase._workload import Workload
from antiphase.strategies import Strategy

Objective = Literal["rms", "max"]


def loss(strategy: Strategy, workload: Workload, participation: Participation, objective: Objective = "rms") -> float:
    """Sensitivity x error: what is compared between mechanisms without amplification.

    Args:
        strategy: C.
        workload: A.
        participation: how one example meets the steps; a random one counts as its worst case.
        objective: "rms" or "max" over the steps.

    >>> from antiphase import PrefixSum, SingleParticipation, strategies
    >>> loss(strategies.Identity(4), PrefixSum(), SingleParticipation(), "max")
    2.0
    """
    check_objective("loss", objective)
    value = error(strategy, workload)
    return sensitivity(strategy, participation).value * (value.rms if objective == "rms" else value.max)


def check_objective(owner: str, objective: str) -> None:
    """Refuse anything but "rms" and "max"."""
    if objective not in get_args(Objective):
        raise invalid(
            owner, "objective", "'rms' or 'max'", objective, "rms averages over the steps, max takes the worst"
        )
