"""The plan that the server enforces: the run directory must state the mechanism that actually runs."""

from __future__ import annotations

from dataclasses import replace

from antiphase._accounting import epsilon
from antiphase._errors import InvalidArgument, NotProved
from antiphase._participation import MinSeparation
from antiphase._plan import Plan

DEVIATION = "the server enforces the participation and adds the noise that it was started with"


def planned_participation(plan: Plan) -> MinSeparation:
    """Return the participation of a plan, which must be one that a federation can enforce."""
    participation = plan.mechanism.participation
    if not isinstance(participation, MinSeparation):
        raise InvalidArgument(
            f"The plan of a federated run must have MinSeparation participation. Got {participation} instead.",
            hint="plan with Problem(participation=antiphase.flower.cohort(...)), since clients cannot be sampled",
        )
    if plan.mechanism.adjacency == "add-or-remove":
        raise NotProved(
            "Add-or-remove adjacency is not proved: with a report goal, an added client changes who else takes part.",
            hint="plan with adjacency='zero-out', which sets a client's contributions to zero",
        )
    return participation


def enforced_plan(plan: Plan, participation: MinSeparation, noise_scale: float) -> Plan:
    """Return the plan with the separation that is enforced, the noise that is added, and the guarantee of both.

    **Guarantee**: the plan in the run directory states the mechanism that ran, whatever tool reads it.

    Args:
        plan: the original plan.
        participation: the participation that the server enforces.
        noise_scale: 1, or less in a simulation with few clients.
    """
    if participation == plan.mechanism.participation and noise_scale == 1.0:
        return plan
    noise = plan.mechanism.noise_std * noise_scale
    mechanism = replace(plan.mechanism, participation=participation, noise_std=noise)
    guarantee = epsilon(mechanism, plan.problem.budget.delta)
    return replace(plan, mechanism=mechanism, guarantee=guarantee, deviation=DEVIATION)
