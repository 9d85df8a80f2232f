"""Planning for a population of clients: how often each client can take part, and the privacy cost of each report goal.

The report goal is the number of client updates in a release. A release is one update of the model by the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from antiphase import _check
from antiphase._accounting import Mechanism, zcdp
from antiphase._bound import Bound
from antiphase._check import invalid
from antiphase._participation import MinSeparation


def cohort(population: int, goal: int, rounds: int) -> MinSeparation:
    """Return the participation with the largest separation that a population of clients allows.

    The separation is the smallest distance between two releases with the same client. It is floor(population / goal),
    but at most `rounds`. A client takes part at most ceil(rounds / separation) times. With a larger separation, some
    releases would have too few eligible clients. The result is optimistic: it assumes that every client returns as soon
    as it is eligible.

    **Guarantee**: none, because this function is only for planning. The server enforces the plan, and the report states
    the participation that was achieved.

    Args:
        population: number of clients that can be reached.
        goal: report goal, the number of client updates in a release.
        rounds: number of releases.

    >>> cohort(population=1000, goal=100, rounds=200)
    MinSeparation(separation=10, max_participations=20)

    Reference: McMahan, Xu and Zhang 2024, App. G.2.
    """
    m = _check.positive_integer("cohort", "goal", goal)
    n = _check.positive_integer("cohort", "rounds", rounds)
    clients = _check.positive_integer("cohort", "population", population)
    if clients < m:
        raise invalid("cohort", "population", f"at least the goal, {m}", population, "lower the goal")
    separation = min(clients // m, n)
    return MinSeparation(separation, -(-n // separation))


@final
@dataclass(frozen=True)
class Extrapolation:
    """Result of `extrapolate` for one report goal.

    Args:
        goal: report goal, the number of client updates in a release.
        population: number of clients that can be reached.
        rounds: number of releases.
        separation: largest separation that the population allows.
        participations: largest number of participations of a client.
        noise_std: `noise_std` of the mechanism, scaled so that the noise in the mean update is the same for every goal.
        zcdp: zCDP parameter rho of the mechanism with this goal.
    """

    goal: int
    population: int
    rounds: int
    separation: int
    participations: int
    noise_std: float
    zcdp: Bound


def extrapolate(mechanism: Mechanism, goal: int, population: int, goals: Sequence[int]) -> list[Extrapolation]:
    """Return the privacy cost for each report goal in `goals`, with the same noise in the mean update as for `goal`.

    The noisy sum of the clipped updates is divided by the goal, so `noise_std` is scaled in proportion to the goal. The
    population stays the same, so the separation shrinks as the goal grows.

    **Guarantee**: each rho holds for the mechanism with that goal. If the goal changes but the noise in the mean update
    stays the same, the model should be equally good, but this is only a hypothesis.

    Args:
        mechanism: mechanism with a noise level that is known to give a good model.
        goal: report goal for which that noise level is known to work.
        population: number of clients that can be reached.
        goals: report goals to evaluate.

    >>> from antiphase import strategies
    >>> known = Mechanism(strategies.Identity(100), cohort(1000, 10, 100), noise_std=1.0)
    >>> [(row.separation, row.noise_std, round(row.zcdp.value, 4)) for row in extrapolate(known, 10, 1000, [10, 100])]
    [(100, 1.0, 0.5), (10, 10.0, 0.05)]

    Reference: McMahan, Xu and Zhang 2024, App. G.2 and Fig. 9.
    """
    known = _check.positive_integer("extrapolate", "goal", goal)
    return [_row(mechanism, known, population, other) for other in goals]


def _row(mechanism: Mechanism, known: int, population: int, goal: int) -> Extrapolation:
    rounds = mechanism.strategy.steps
    participation = cohort(population, goal, rounds)
    other = replace(mechanism, participation=participation, noise_std=mechanism.noise_std * goal / known)
    count = participation.largest_count(rounds)
    return Extrapolation(goal, population, rounds, participation.separation, count, other.noise_std, zcdp(other))
