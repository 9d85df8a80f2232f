"""Planning for a population: how often a client can take part, and what a larger report goal buys."""

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
    """The participation that a population allows: separation floor(population / goal), ceil(rounds / separation) times.

    With fewer clients than separation x goal some release finds too few that may take part. The estimate is
    optimistic: it needs every client to come back as soon as it may.

    **Guarantee**: none: it is a plan. The server enforces it, and the report says what happened.

    Args:
        population: clients that can be reached.
        goal: updates in a release.
        rounds: releases.

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
    """One row of a planning table: the same model quality with another report goal.

    Args:
        goal, population, rounds: as asked.
        separation, participations: what the population allows.
        noise_std: scaled with the goal, so that the noise in the mean update stays the same.
        zcdp: rho.
    """

    goal: int
    population: int
    rounds: int
    separation: int
    participations: int
    noise_std: float
    zcdp: Bound


def extrapolate(mechanism: Mechanism, goal: int, population: int, goals: Sequence[int]) -> list[Extrapolation]:
    """What other report goals would cost in privacy at the same noise in the mean update.

    The sum of the clipped updates and its noise are divided by the goal, so noise_std grows in proportion to it;
    the separation shrinks, since the population does not grow.

    **Guarantee**: each row's rho is that of its own mechanism. That the model stays as good is a hypothesis.

    Args:
        mechanism: one that is known to work, with its noise.
        goal: the report goal it works with.
        population: clients that can be reached.
        goals: report goals to try.

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
