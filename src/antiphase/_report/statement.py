"""The privacy statement: the guarantee, whom it protects, and its assumptions.

The items follow Choquette-Choo et al. 2023 (amplified banded), App. K.1, and Ponomareva et al. 2023, section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphase._accounting import zcdp
from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._errors import NotProved
from antiphase._federated import FederatedReport
from antiphase._report.reading import ReportSource

Item = tuple[str, str]
NEGLIGIBLE_DELTA = 1e-300
ADJACENCY = {
    "zero-out": "Two data sets are neighbours if one becomes the other when all contributions of one {unit} are "
    "set to zero; the number of {unit}s stays the same.",
    "add-or-remove": "Two data sets are neighbours if one has one {unit} more than the other. The number of "
    "{unit}s, which the plan and the run were given, counts as public.",
    "replace": "Two data sets are neighbours if they differ in the contents of one {unit}.",
}
KIND = {
    "exact": "the true value, up to floating-point rounding",
    "upper": "an upper bound, never below the true value",
    "confident": "an upper bound from samples; the probability that it fails is already part of delta",
}


def guarantee(source: ReportSource) -> Bound | None:
    """Return the guarantee of the steps that ran (None if no step ran), or of the plan if there is no run.

    For a federated run, return the guarantee for the achieved participation.
    """
    if source.federated is not None:
        return source.federated.guarantee
    return source.plan.guarantee if source.run is None else source.run.guarantee


def headline(source: ReportSource) -> str:
    """Return the guarantee in one sentence."""
    bound, delta = guarantee(source), source.plan.problem.budget.delta
    if source.federated is not None:
        return _federated_headline(source.federated)
    if bound is None:
        return "No step has been taken, so nothing has been released."
    what = "would be" if source.run is None else "is"
    text = f"Training {what} (epsilon = {rounded_up(bound.value)}, delta = {digits_up(delta)})-differentially private"
    if source.run is not None and source.run.extensions:  # not even the planned epsilon was known in advance
        return f"{text} if the number of steps was not chosen by looking at the outputs."
    if source.run is None or source.run.steps_run == source.plan.steps:
        return f"{text}."
    planned = rounded_up(source.planned.value)
    return f"{text} if the stopping step was fixed in advance. Otherwise, epsilon is {planned}."


def _federated_headline(report: FederatedReport) -> str:
    bound, enforced = report.guarantee, report.run.guarantee
    if not report.run.steps_run:
        return "No release has been made."
    if bound is None:
        return "No guarantee is stated for this run; the remarks say why."
    text = (
        f"Training is (epsilon = {rounded_up(bound.value)}, delta = {digits_up(report.run.delta)})-differentially "
        "private for the participation that was achieved"
    )
    assert enforced is not None
    return f"{text}, and epsilon is at most {rounded_up(enforced.value)} for any participation that the server allows."


def statement(source: ReportSource) -> Iterator[Item]:
    """Yield the items of the statement, in the order in which the report shows them."""
    if source.federated is not None:
        yield from source.federated.items
        yield "Noise", _noise(source)
        yield "Bits of releases", _bits(source)
        return
    problem, mechanism, run = source.plan.problem, source.plan.mechanism, source.run
    unit = problem.unit
    yield (
        "Setting",
        "Central: the party that runs the training is trusted to run it as stated and not to disclose the run's "
        "secret.",
    )
    yield "Data accesses covered", _covered(source)
    yield (
        "Outputs covered",
        "The noisy gradients of all steps, and therefore every intermediate model, the final model and anything "
        "computed from them.",
    )
    if run is not None:
        labels = [f"{p.label} (after {p.steps:,} steps)" for p in run.publications]
        yield "Published", "; ".join(labels) or "nothing so far"
    yield (
        "Unit of privacy",
        f"One {unit}, whose contribution to a step has norm at most {digits_up(problem.clip_norm)}.",
    )
    yield "Neighbouring data sets", ADJACENCY[mechanism.adjacency].format(unit=unit)
    yield "Participation assumed", mechanism.participation.describe(unit, source.plan.steps)
    bound = guarantee(source) or source.plan.guarantee
    yield "Accounting", f"{bound.method}. {bound.reference}."
    yield "Kind of bound", f"{bound.kind}: {KIND[bound.kind]}."
    yield "Noise", _noise(source)
    yield "Bits of releases", _bits(source)
    yield "Formal statement", _formal(source)


def _covered(source: ReportSource) -> str:
    rest = (
        "Not covered: using the data to choose hyperparameters, a checkpoint, or this run among several runs; and "
        "metrics computed on the same data without noise."
    )
    if source.run is None:
        return f"One training run of {source.plan.steps:,} steps. {rest}"
    return f"The {source.run.steps_run:,} steps of run {source.run.run_id}, published or not. {rest}"


def _noise(source: ReportSource) -> str:
    mechanism = source.plan.mechanism
    return (
        f"{type(mechanism.strategy).__name__} strategy, noise of standard deviation {mechanism.noise_std:.6g} x "
        f"clipping norm, effective noise multiplier {mechanism.effective_noise_multiplier:.6g}. {_tail(source)}"
    )


def _bits(source: ReportSource) -> str:
    """Describe the kind of noise, and whether the guarantee covers the exact bits of releases."""
    lattice = source.plan.mechanism.lattice
    if lattice is None:
        return (
            "The noise is made in floating point. The guarantee is for real numbers and does not cover the exact bits "
            "of releases. With lattice noise, it would cover them."
        )
    return (
        f"The noise is made in exact integers, in units of 2^{lattice.exponent}, for contributions of integer norm at "
        f"most {lattice.norm} and up to {lattice.entries:,} parameters. The guarantee covers every bit of the released "
        "integers, if each contribution was rounded to the grid separately."
    )


def _tail(source: ReportSource) -> str:
    """Return a sentence on how the guarantee accounts for noise that is bounded, unlike ideal Gaussian noise."""
    if source.plan.mechanism.lattice is not None:
        return "Its draws are exact, and delta accounts for the probability that a number does not fit into 62 bits."
    if source.run is None:
        return "The guarantee is for ideal Gaussian noise; the report of a run accounts for the run's own noise."
    if source.run.smallest_delta is None:
        return "The noise is assumed to be normal; see the remarks."
    smallest = source.run.smallest_delta
    limit = (
        "the statement holds for every delta"
        if smallest < NEGLIGIBLE_DELTA
        else f"delta must be at least {digits_up(smallest, 2)}"
    )
    return f"Unlike ideal noise, the run's noise is bounded. Delta accounts for this; at this epsilon, {limit}."


def _formal(source: ReportSource) -> str:
    bound, delta = guarantee(source), source.plan.problem.budget.delta
    if bound is None:
        return "No step has been taken, so there is no guarantee to state."
    text = f"(epsilon = {rounded_up(bound.value)}, delta = {digits_up(delta)})-DP"
    if source.run is not None and source.run.steps_run != source.plan.steps:
        planned = rounded_up(source.planned.value)
        return f"{text} for the steps that ran. For all {source.plan.steps:,} planned steps, epsilon = {planned}."
    try:
        rho = rounded_up(zcdp(source.plan.mechanism).value, 6)
    except NotProved:
        return f"{text}."
    # The run's noise is bounded, so its rho is infinite: some outputs are possible for only one of two neighbours.
    return f"{text}; with ideal Gaussian noise, which is unbounded, rho = {rho} zCDP."
