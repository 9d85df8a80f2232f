"""The guarantee of what ran, beside what was planned."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase._accounting import drawn_like, epsilon_after, restated
from antiphase._bound import Bound
from antiphase._plan import Plan
from antiphase._run.history import HOST, History, Publication
from antiphase._run.tail import Tail, tail_words
from antiphase._secret import Secret

NO_BATCHES = (
    "The run made no batches: the guarantee holds if every example kept the plan's participation, which nothing here "
    "has checked."
)


@dataclass(frozen=True)
class PrivacyReport:
    """What a run promises, derived from its ledger.

    **Guarantee**: `guarantee` covers every committed step, whether published or not. None where no step was taken.
    For a run that was stopped or extended at a step chosen by looking at its outputs it describes what was released;
    the promise made beforehand is the plan's.

    Args:
        run_id: the run.
        unit: what is protected.
        adjacency: under which neighbouring relation.
        delta: at which epsilon is stated.
        planned: the plan's epsilon for all its steps.
        guarantee: the epsilon of the steps that ran; it covers the end of the noise's distribution.
        smallest_delta: at this epsilon, a delta below it is refused: the noise does not cover it. About 5e-324 where
            every delta is covered. None where noise was made on a device, and a remark states what is assumed of it.
        steps_planned, steps_run: their numbers.
        publications: what left the building, and after how many steps.
        rewinds: how often unpublished steps were taken again with another output, or noisy outputs dropped.
        remarks: where what ran differs from what was planned, and anything that weakens the claim.
    """

    run_id: str
    unit: str
    adjacency: str
    delta: float
    planned: Bound
    guarantee: Bound | None
    smallest_delta: float | None
    steps_planned: int
    steps_run: int
    publications: tuple[Publication, ...]
    rewinds: int
    remarks: tuple[str, ...]


def report(
    plan: Plan, history: History, secret: Secret, run_id: str, examples: int | None, tail: Tail
) -> PrivacyReport:
    """The report on a run with this plan and history; `examples` is None where it makes no batches.

    Refused where the noise of the run does not cover the plan's delta.
    """
    delta = plan.problem.budget.delta
    guarantee = _guarantee(plan, history.committed, delta, tail)
    remarks = _remarks(plan, history, secret, guarantee, tail)
    return PrivacyReport(
        run_id=run_id,
        unit=plan.problem.unit,
        adjacency=plan.mechanism.adjacency,
        delta=delta,
        planned=plan.guarantee,
        guarantee=guarantee,
        smallest_delta=tail.smallest_delta((guarantee or plan.guarantee).value),
        steps_planned=plan.steps,
        steps_run=history.committed,
        publications=tuple(history.publications),
        rewinds=history.rewinds,
        remarks=(*remarks, *([NO_BATCHES] if examples is None else [])),
    )


def _guarantee(plan: Plan, steps: int, delta: float, tail: Tail) -> Bound | None:
    if steps == 0:
        return None
    if steps == plan.steps:
        return tail.covered(lambda smaller: restated(plan.mechanism, plan.guarantee, smaller), delta)

    def early(smaller: float) -> Bound:
        whole = restated(plan.mechanism, plan.guarantee, smaller)
        return epsilon_after(plan.mechanism, steps, smaller, whole, drawn_like(plan.guarantee))

    return tail.covered(early, delta)


def _remarks(plan: Plan, history: History, secret: Secret, guarantee: Bound | None, tail: Tail) -> list[str]:
    remarks = []
    if guarantee is not None and guarantee.value > plan.problem.budget.epsilon:
        remarks.append(f"Epsilon is above the budget of {plan.problem.budget.epsilon}.")
    if plan.deviation:
        known = history.details == plan.details  # what the file says beyond that could have been written by anyone
        why = f": {plan.deviation}." if known else ". The reason given in the plan is not in the ledger."
        remarks.append(f"The mechanism may differ from what the problem asks for{why}")
    if history.extensions:
        remarks.append(f"The plan was extended {history.extensions} time(s) while the run was under way.")
    if secret.is_insecure:
        remarks.append("The secret was made from a known integer: anyone can subtract the noise. For tests only.")
    if history.source != HOST:
        remarks.append(
            f"The noise was not made by AES on the host but by {history.source}, which is not cryptographic: "
            "whoever predicts it can subtract it."
        )
        remarks.append(tail_words(tail.end))
    if history.committed < plan.steps:
        remarks.append(
            f"Stopped after {history.committed} of {plan.steps} planned steps. The epsilon of the steps that ran holds "
            "if the step to stop at was not chosen by looking at the outputs; otherwise the planned one applies."
        )
    if history.rewinds:
        remarks.append(
            f"Unpublished steps were taken again {history.rewinds} time(s), which is free only if neither the decision "
            "nor the new outputs made use of the withdrawn ones."
        )
    return remarks
