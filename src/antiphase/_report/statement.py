"""The privacy statement: what is guaranteed, to whom, under which assumptions.

The items are those reported in bandmf-amplified App. K.1, after Ponomareva et al. 2023, section 5.3.
"""

from __future__ import annotations

from collections.abc import Iterator

from antiphase._accounting import zcdp
from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._errors import NotProved
from antiphase._report.reading import ReportSource

Item = tuple[str, str]
NEGLIGIBLE_DELTA = 1e-300
ADJACENCY = {
    "zero-out": "Two data sets are neighbours if one comes from the other by setting all contributions of one {unit} "
    "to zero; the number of {unit}s stays the same.",
    "add-or-remove": "Two data sets are neighbours if one has one {unit} more than the other.",
    "replace": "Two data sets are neighbours if they differ in the contents of one {unit}.",
}
KIND = {
    "exact": "the true value, up to floating-point rounding",
    "upper": "an upper bound, never below the true value",
    "confident": "an upper bound from samples; the probability that it fails is already part of delta",
}


def guarantee(source: ReportSource) -> Bound | None:
    """Return the guarantee of the steps that ran, None if there are none; for a plan without a run, its guarantee."""
    return source.plan.guarantee if source.run is None else source.run.guarantee


def headline(source: ReportSource) -> str:
    """Return the guarantee in one sentence."""
    bound, delta = guarantee(source), source.plan.problem.budget.delta
    if bound is None:
        return "No step has been taken: nothing has been released."
    what = "would be" if source.run is None else "is"
    text = f"Training {what} (epsilon = {rounded_up(bound.value)}, delta = {digits_up(delta)})-differentially private"
    if source.run is None or source.run.steps_run == source.plan.steps:
        return f"{text}."
    planned = rounded_up(source.plan.guarantee.value)
    return f"{text} if the stopping step was fixed in advance, and with epsilon = {planned} otherwise."


def statement(source: ReportSource) -> Iterator[Item]:
    """Yield the items of the statement, in the order of the checklist."""
    problem, mechanism, run = source.plan.problem, source.plan.mechanism, source.run
    unit = problem.unit
    yield (
        "Setting",
        "Central: whoever runs the training is trusted to run it as stated and to keep the secret of the run.",
    )
    yield "Data accesses covered", _covered(source)
    yield (
        "What is protected as output",
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
    yield "Formal statement", _formal(source)


def _covered(source: ReportSource) -> str:
    rest = (
        "Not covered: choosing hyperparameters, this run among others, or a checkpoint by looking at the data; and "
        "metrics computed on the same data without noise."
    )
    if source.run is None:
        return f"One training run of {source.plan.steps:,} steps. {rest}"
    return f"The {source.run.steps_run:,} steps of run {source.run.run_id}, published or not. {rest}"


def _noise(source: ReportSource) -> str:
    mechanism = source.plan.mechanism
    return (
        f"{type(mechanism.strategy).__name__} strategy, standard deviation {mechanism.noise_std:.6g} per unit of "
        f"clipping norm, effective noise multiplier {mechanism.effective_noise_multiplier:.6g}. {_tail(source)}"
    )


def _tail(source: ReportSource) -> str:
    """Return what the report assumes or covers about the tail of the noise."""
    if source.run is None:
        return "Accounted for as ideal Gaussian noise; the report of a run states what its own noise covers."
    if source.run.smallest_delta is None:
        return "The noise is assumed to be normal; see the remarks."
    smallest = source.run.smallest_delta
    limit = "any delta suffices" if smallest < NEGLIGIBLE_DELTA else f"a delta below {smallest:.2g} would be refused"
    return f"Delta covers that the run's noise, unlike ideal noise, is bounded; at this epsilon {limit}."


def _formal(source: ReportSource) -> str:
    bound, delta = guarantee(source), source.plan.problem.budget.delta
    if bound is None:
        return "No step has been taken, so nothing is stated."
    text = f"(epsilon = {rounded_up(bound.value)}, delta = {digits_up(delta)})-DP"
    if source.run is not None and source.run.steps_run != source.plan.steps:
        planned = rounded_up(source.plan.guarantee.value)
        return f"{text} for the steps that ran; the plan is {source.plan.steps:,} steps at epsilon = {planned}."
    try:
        return f"{text}; rho = {rounded_up(zcdp(source.plan.mechanism).value, 6)} zCDP."
    except NotProved:
        return f"{text}."
