"""Planning for a population: how often clients can take part, and the effect of a larger report goal."""

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
    """Return the participation that a population can sustain.

    The separation is floor(population / goal), and a client takes part at most ceil(rounds / separation) times. With
    fewer than separation x goal clients, some release would find too few eligible ones. The estimate is optimistic: it
    needs every client to return as soon as it is eligible.

    **Guarantee**: none; this is for planning. The server enforces the plan, and the report states what happened.

    Args:
        population: number of clients that can be reached.
        goal: number of updates in a release.
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
    """A row of a planning table: another report goal, with the same noise in the mean update.

    Args:
        goal, population, rounds: as passed to `extrapolate`.
        separation, participations: what the population can sustain.
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
    """Return the privacy cost of other report goals at the same noise in the mean update.

    The sum of the clipped updates and its noise are divided by the goal, so noise_std grows in proportion to the goal.
    The separation shrinks, since the population stays the same.

    **Guarantee**: each row's rho is that of its own mechanism. That the model is equally good is a hypothesis.

    Args:
        mechanism: a mechanism with a noise level that is known to work.
        goal: the report goal it works with.
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
