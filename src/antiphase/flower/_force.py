"""The plan as the server carries it out: what the run directory states must be what runs."""

from __future__ import annotations

from dataclasses import replace

from antiphase._accounting import epsilon
from antiphase._errors import InvalidArgument, NotProved
from antiphase._participation import MinSeparation
from antiphase._plan import Plan

DEVIATION = "the server enforces the participation and adds the noise that it was started with"


def planned_participation(plan: Plan) -> MinSeparation:
    """The participation of a plan that a federation can keep."""
    participation = plan.mechanism.participation
    if not isinstance(participation, MinSeparation):
        raise InvalidArgument(
            f"The plan must be for MinSeparation(separation). Got {participation} instead.",
            hint="clients come when they like: Problem(participation=antiphase.flower.cohort(...))",
        )
    if plan.mechanism.adjacency == "add-or-remove":
        raise NotProved(
            "With a report goal, one client more or less changes who else takes part: add-or-remove is not proved.",
            hint="plan with adjacency='zero-out', under which a client's contributions become zero",
        )
    return participation


def plan_in_force(plan: Plan, participation: MinSeparation, noise_scale: float) -> Plan:
    """The plan with the separation that is enforced and the noise that is added, and the guarantee of that.

    **Guarantee**: whoever reads the run directory, with whatever tool, finds the mechanism that ran.

    Args:
        plan: as it was made.
        participation: what the server enforces.
        noise_scale: 1, or less in a simulation with few clients.
    """
    if participation == plan.mechanism.participation and noise_scale == 1.0:
        return plan
    noise = plan.mechanism.noise_std * noise_scale
    mechanism = replace(plan.mechanism, participation=participation, noise_std=noise)
    guarantee = epsilon(mechanism, plan.problem.budget.delta)
    return replace(plan, mechanism=mechanism, guarantee=guarantee, deviation=DEVIATION)
