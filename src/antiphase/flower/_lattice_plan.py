"""Puts the plan of a federated run on a lattice, so that the guarantee covers every bit of the released models.

On a lattice, updates are rounded to a grid, and sums and noise are exact integers (docs/lattice-noise.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from antiphase._accounting import Mechanism, epsilon
from antiphase._errors import InvalidArgument, NotProved, Refused
from antiphase._federated import DEVIATION
from antiphase._lattice import Lattice, choose_lattice, rounded_strategy
from antiphase._participation import Participation
from antiphase._plan import Plan, with_derived_guarantee
from antiphase._run import stored_dtype

MARGIN = 1e-9  # the noise is larger by this relative margin, so that rounding errors do not raise epsilon
LARGEST_CLIP = 1e200  # with a larger clipping norm, the grid would be out of range
LARGEST_SUM = 1 << 62  # limit for the sum of a release's updates; sum plus noise then fits into 64 bits
# Largest allowed relative difference between the noise_std of the stored plan and the noise_std of the given plan on
# the same lattice. For the same plan, the difference comes only from rounding errors of another machine or version. An
# extended plan keeps the stored noise_std, although rounding to the grid adds more to the sensitivity of a longer run.
SAME_NOISE = 1e-8
EXTENDED_NOISE = 2.0**-6
TURNED_OFF = "the server was started with lattice=False."


def plan_to_run(
    plan: Plan, directory: Path, parameters: int, enforce: Callable[[Plan], Plan], places: int, lattice: bool | None
) -> tuple[Plan, str]:
    """Return the plan that a server runs in a directory, and the reason why a new run has no lattice.

    The reason is "" if the run has a lattice or is not new. A new run gets a lattice if its strategy allows it. A run
    that is already in the directory keeps the kind of noise that it began with.

    Args:
        plan: plan that the server was given.
        directory: directory of the run.
        parameters: number of model parameters.
        enforce: function from a plan to the plan that the server enforces, which may have another separation.
        places: number of updates in a release.
        lattice: True to raise an error if the run cannot have a lattice, False for noise in floating point, None for a
            lattice if possible.
    """
    if plan.mechanism.lattice is not None:
        return enforce(plan), ""
    dtype = stored_dtype(directory)
    if dtype is not None:
        _check_kind(dtype == "int64", lattice)
        return (_continued(plan, directory, enforce) if dtype == "int64" else enforce(plan)), ""
    if lattice is False:
        return enforce(plan), TURNED_OFF
    try:
        participation = enforce(plan).mechanism.participation
        return enforce(on_lattice(plan, parameters, places, participation)), ""
    except (NotProved, Refused) as error:
        if lattice:
            raise
        return enforce(plan), error.message


def on_lattice(
    plan: Plan, parameters: int, places: int, enforced: Participation | None = None, lattice: Lattice | None = None
) -> Plan:
    """Return a plan with the same strategy, workload and epsilon, whose noise is made in exact integers.

    The coefficients of the strategy are rounded, as lattice noise requires. The sensitivity then includes the effect of
    rounding, and the noise grows by the same factor as the sensitivity. Raises `NotProved` or `Refused` if there is no
    lattice noise for the plan.

    **Guarantee**: epsilon is computed from the new mechanism. It is at most the epsilon of the given plan, both under
    the participation of the plan and under the participation that the server enforces.

    Args:
        plan: plan without a lattice.
        parameters: number of model parameters.
        places: number of updates in a release.
        enforced: participation that the server enforces; None for the participation of the plan.
        lattice: grid; None to choose one.
    """
    plan = with_derived_guarantee(plan)
    given, problem = plan.mechanism, plan.problem
    strategy = rounded_strategy(given.strategy)
    participation = given.participation if enforced is None else enforced
    both = {participation, given.participation}
    if lattice is None:
        if problem.clip_norm > LARGEST_CLIP:
            raise NotProved(
                f"There is no lattice for clipping norms above {LARGEST_CLIP:g}. Got {problem.clip_norm:g}.",
                hint="divide the updates and the clipping norm by the same factor",
            )
        noise = given.noise_std * _growth(given, replace(given, strategy=strategy), both)
        entries = max(parameters, problem.parameters or 1)
        lattice = choose_lattice(strategy, participation, noise, entries, problem.clip_norm)
    if places * lattice.norm > LARGEST_SUM:
        raise NotProved(
            f"Sums of {places:,} updates may not fit into 64-bit integers on the grid of this plan.",
            hint="use noise in floating point (no lattice), or fewer clients in a release",
        )
    growth = _growth(given, replace(given, strategy=strategy, lattice=lattice), both) * (1.0 + MARGIN)
    mechanism = replace(given, strategy=strategy, noise_std=given.noise_std * growth, lattice=lattice)
    lattice.check(strategy, mechanism.noise_std)
    # `rounded_strategy` divides C by its diagonal, which changes noise_std but not the noise in the model.
    error = plan.error * growth / _growth(given, replace(given, strategy=strategy), {given.participation})
    # The plan's candidates were compared without a lattice. Only the first one runs, so only it gets the new noise.
    first = [replace(c, noise_std=mechanism.noise_std, error=error) for c in plan.candidates[:1]]
    return replace(
        plan,
        problem=replace(problem, lattice=True, parameters=lattice.entries),
        mechanism=mechanism,
        guarantee=epsilon(mechanism, problem.budget.delta),
        error=error,
        candidates=(*first, *plan.candidates[1:]),
    )


def _growth(before: Mechanism, after: Mechanism, participations: set[Participation]) -> float:
    """Return the largest ratio of sensitivities, `after` over `before`, among the given participations."""
    return max(
        replace(after, participation=p).reduction.sensitivity.value
        / replace(before, participation=p).reduction.sensitivity.value
        for p in participations
    )


def _check_kind(has_lattice: bool, wanted: bool | None) -> None:
    if wanted is not None and wanted != has_lattice:
        found = "on a lattice" if has_lattice else "in floating point"
        raise InvalidArgument(
            f"DPFTRL got lattice={wanted}, but the run in this directory makes its noise {found}. A run keeps the kind "
            "of noise that it was started with.",
            hint="omit lattice, or start a new run in another directory",
        )


def _continued(plan: Plan, directory: Path, enforce: Callable[[Plan], Plan]) -> Plan:
    """Return the plan with which a run on a lattice continues: its stored plan, or an extension of its stored plan.

    If the given plan is neither the plan that the run was started with nor an extension of that plan, the result is a
    different plan, which `Run.open` refuses.
    """
    stored = Plan._load(directory / "plan.json", DEVIATION)
    lattice = stored.mechanism.lattice
    assert lattice is not None
    is_longer = bool(plan.root) and plan.steps > stored.steps and stored.mechanism.strategy.is_extensible
    own = stored.extend(plan.steps) if is_longer else stored
    made = enforce(on_lattice(plan, lattice.entries, 1, enforce(plan).mechanism.participation, lattice))
    noise = own.mechanism.noise_std
    is_close = abs(made.mechanism.noise_std / noise - 1.0) < (EXTENDED_NOISE if own.root else SAME_NOISE)
    is_same = made.problem == own.problem and replace(made.mechanism, noise_std=noise) == own.mechanism
    return own if is_close and is_same else made
