"""The loss, sensitivity x error, which compares mechanisms without amplification."""

from __future__ import annotations

from antiphase._error import error
from antiphase._objective import Objective, check_objective
from antiphase._participation import Participation
from antiphase._sensitivity import sensitivity
from antiphase._workload import Workload
from antiphase.strategies import Strategy

__all__ = ["Objective", "check_objective", "loss"]


def loss(strategy: Strategy, workload: Workload, participation: Participation, objective: Objective = "rms") -> float:
    """Return sensitivity x error.

    Without amplification by sampling, the noise in the model at a given guarantee is proportional to this product. So
    of two strategies with the same guarantee, the one with the smaller loss adds less noise to the model.

    Args:
        strategy: strategy matrix, C.
        workload: workload matrix, A.
        participation: steps in which one example takes part. If they are random, the worst possible steps are used.
        objective: how to measure the noise: "rms" or "max" over all steps, "training" (the noise at the end plus the
            noise over all steps), or a `Curvatures`, which averages over directions of different curvature.

    >>> from antiphase import PrefixSum, SingleParticipation, strategies
    >>> loss(strategies.Identity(4), PrefixSum(), SingleParticipation(), "max")
    2.0
    """
    objective = check_objective("loss", objective)
    return sensitivity(strategy, participation).value * error(strategy, workload, objective).value
