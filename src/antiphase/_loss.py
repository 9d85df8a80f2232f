"""Loss: sensitivity times error, by which mechanisms without amplification are compared."""

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
    """Return sensitivity x error, by which mechanisms without amplification are compared.

    Args:
        strategy: strategy matrix, C.
        workload: workload matrix, A.
        participation: steps in which one example takes part; a random participation counts as its worst case.
        objective: error over the steps, "rms" or "max".

    >>> from antiphase import PrefixSum, SingleParticipation, strategies
    >>> loss(strategies.Identity(4), PrefixSum(), SingleParticipation(), "max")
    2.0
    """
    check_objective("loss", objective)
    value = error(strategy, workload)
    return sensitivity(strategy, participation).value * (value.rms if objective == "rms" else value.max)


def check_objective(owner: str, objective: str) -> None:
    """Raise unless the objective is "rms" or "max"."""
    if objective not in get_args(Objective):
        raise invalid(
            owner, "objective", "'rms' or 'max'", objective, "rms averages over the steps, max takes the worst"
        )
