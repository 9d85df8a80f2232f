"""Loss: sensitivity times error, by which mechanisms without amplification are compared."""

from __future__ import annotations

from typing import Literal, get_args

from antiphase._check import one_of
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
    objective = check_objective("loss", objective)
    value = error(strategy, workload)
    return sensitivity(strategy, participation).value * (value.rms if objective == "rms" else value.max)


def check_objective(owner: str, objective: str) -> Objective:
    """Return the objective, "rms" or "max"; raise for anything else."""
    names: tuple[Objective, ...] = get_args(Objective)
    return one_of(owner, "objective", objective, names, "rms averages over the steps, max takes the worst")
