"""Puts the plan of a federated run on a lattice, so that its guarantee covers every bit of the released models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from antiphase._accounting import Mechanism, epsilon
from antiphase._errors import NotProved, Refused
from antiphase._federated import DEVIATION
from antiphase._lattice import Lattice, choose_lattice, rounded_strategy
from antiphase._plan import Plan
from antiphase._run import stored_dtype

MARGIN = 1e-9  # relative; the noise is larger by this much, so that rounding errors do not raise epsilon
SAME_NOISE = 1e-2  # relative; noise of the same plan differs by rounding errors, and by the lattice's rounding if extended


def plan_to_run(plan: Plan, directory: Path, parameters: int, *, wants_lattice: bool) -> tuple[Plan, str]:
    """Return the plan that a server runs in a directory, and why it has no lattice; "" if it has one or wants none.

    A new run gets a lattice if its strategy allows it. The run in a directory keeps the kind of noise that it began
    with.

    Args:
        plan: plan that the server was given.
        directory: run directory.
        parameters: number of model parameters.
        wants_lattice: whether a new run should have a lattice.
    """
    if plan.mechanism.lattice is not None:
        return plan, ""
    stored = stored_dtype(directory)
    if stored is None and wants_lattice:
        try:
            return on_lattice(plan, parameters), ""
        except (NotProved, Refused) as error:
            return plan, error.message
    if stored == "int64":
        return _continued(plan, Plan._load(directory / "plan.json", DEVIATION)), ""
    return plan, ""


def on_lattice(plan: Plan, parameters: int, lattice: Lattice | None = None) -> Plan:
    """Return a plan with the same strategy, workload and epsilon, whose noise is made in exact integers.

    The noise has the same standard deviation relative to the sensitivity, which now includes the rounding of the
    lattice. Raises `NotProved` or `Refused` if there is no lattice noise for the strategy.

    **Guarantee**: epsilon is computed from the new mechanism, and is at most that of the given plan.

    Args:
        plan: plan without a lattice.
        parameters: number of model parameters.
        lattice: grid; None to choose one.
    """
    given, problem = plan.mechanism, plan.problem
    strategy = rounded_strategy(given.strategy)
    rounded = replace(given, strategy=strategy)
    ratio = _sensitivity(rounded) / _sensitivity(given)
    entries = max(parameters, problem.parameters or 0)
    if lattice is None:
        noise_std = given.noise_std * ratio
        lattice = choose_lattice(strategy, given.participation, noise_std, entries, problem.clip_norm)
    growth = _sensitivity(replace(rounded, lattice=lattice)) / _sensitivity(rounded) * (1.0 + MARGIN)
    mechanism = replace(rounded, noise_std=given.noise_std * ratio * growth, lattice=lattice)
    lattice.check(strategy, mechanism.noise_std)
    # Candidates were compared without a lattice; the first one, which runs, has the new noise.
    first = [replace(c, noise_std=mechanism.noise_std, error=plan.error * growth) for c in plan.candidates[:1]]
    return replace(
        plan,
        problem=replace(problem, lattice=True, parameters=lattice.entries),
        mechanism=mechanism,
        guarantee=epsilon(mechanism, problem.budget.delta),
        error=plan.error * growth,
        candidates=(*first, *plan.candidates[1:]),
    )


def _continued(plan: Plan, stored: Plan) -> Plan:
    """Return the given plan with the lattice of a stored one, which `Run.open` compares it with.

    The stored noise is used if it differs only by rounding errors, which depend on the version that made the plan.
    """
    lattice = stored.mechanism.lattice
    assert lattice is not None
    made = on_lattice(plan, lattice.entries, lattice)
    noise = stored.mechanism.noise_std
    if abs(made.mechanism.noise_std / noise - 1.0) < SAME_NOISE:
        mechanism = replace(made.mechanism, noise_std=noise)
        first = [replace(c, noise_std=noise) for c in made.candidates[:1]]
        guarantee = epsilon(mechanism, plan.problem.budget.delta)
        made = replace(made, mechanism=mechanism, guarantee=guarantee, candidates=(*first, *made.candidates[1:]))
    if plan.root and not stored.root and plan.steps > stored.steps:
        return replace(made, root=stored.fingerprint)  # an extension of the run's plan
    return replace(made, root=stored.root) if plan.root else made


def _sensitivity(mechanism: Mechanism) -> float:
    return mechanism.reduction.sensitivity.value
