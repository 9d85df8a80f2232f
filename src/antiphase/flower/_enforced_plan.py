"""Computes the plan that the server enforces, which is stored in the run directory."""

from __future__ import annotations

from dataclasses import replace

from antiphase._accounting import epsilon
from antiphase._errors import InvalidArgument, NotProved
from antiphase._federated import DEVIATION
from antiphase._participation import MinSeparation
from antiphase._plan import Plan


def planned_participation(plan: Plan) -> MinSeparation:
    """Return the participation of a plan. Raise an error if a federated run cannot enforce it."""
    participation = plan.mechanism.participation
    if not isinstance(participation, MinSeparation):
        raise InvalidArgument(
            f"The plan of a federated run must have MinSeparation participation. Got {participation} instead.",
            hint="plan with Problem(participation=antiphase.flower.cohort(...)); the server cannot sample clients at "
            "random",
        )
    if plan.mechanism.adjacency == "add-or-remove":
        raise NotProved(
            "The guarantee is not proved for add-or-remove adjacency: a release has a fixed number of places, so an "
            "added client changes who else takes part.",
            hint="plan with adjacency='zero-out', which sets a client's contributions to zero",
        )
    return participation


def enforced_plan(plan: Plan, participation: MinSeparation, noise_scale: float) -> Plan:
    """Return the plan with the enforced participation, the noise that is actually added, and the resulting guarantee.

    The server stores this plan in the run directory.

    **Guarantee**: every tool that reads the stored plan sees the mechanism that actually runs.

    Args:
        plan: original plan.
        participation: participation that the server enforces.
        noise_scale: factor that the noise is multiplied by. It differs from 1 only in a simulation with few clients.
    """
    if participation == plan.mechanism.participation and noise_scale == 1.0:
        return plan
    noise = plan.mechanism.noise_std * noise_scale
    mechanism = replace(plan.mechanism, participation=participation, noise_std=noise)
    guarantee = epsilon(mechanism, plan.problem.budget.delta)
    return replace(plan, mechanism=mechanism, guarantee=guarantee, deviation=DEVIATION)
