"""The guarantee of the steps that ran, next to what was planned."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase._accounting import drawn_like, epsilon_after, restated
from antiphase._bound import Bound
from antiphase._plan import Plan
from antiphase._run.history import HOST, History, Publication
from antiphase._run.tail import Tail, tail_words
from antiphase._secret import Secret

NO_BATCHES = (
    "The run drew no batches. The guarantee holds if every example took part as the plan's participation allows, which "
    "was not checked."
)


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy guarantee of a run, computed from its ledger.

    **Guarantee**: `guarantee` covers every committed step, published or not; None if no step was taken. If the step at
    which the run was stopped or extended was chosen by looking at its outputs, `guarantee` describes what was released,
    and the guarantee that holds in advance is the plan's.

    Args:
        run_id: id of the run.
        unit: what is protected.
        adjacency: neighbouring relation.
        delta: delta at which epsilon is stated.
        planned: epsilon of all steps of the plan.
        guarantee: epsilon of the steps that ran. It accounts for the bounded range of the random draws.
        smallest_delta: smallest delta that can be stated with this epsilon, because the draws are bounded; about 5e-324
            if there is no limit. None if noise was made on a device; a remark then states what is assumed.
        steps_planned: number of steps of the plan.
        steps_run: number of steps that ran.
        publications: what was published, and after how many steps.
        rewinds: how often unpublished steps were replayed with another output, or noisy outputs dropped.
        remarks: where the run differs from the plan, and anything that weakens the claim.
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
    """Report on a run with this plan and history. `examples` is None if the run draws no batches.

    Refused if the plan's delta is too small for the bounded range of the draws.
    """
    delta = plan.problem.budget.delta
    guarantee = guarantee_after(plan, history.committed, delta, tail)
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


def guarantee_after(plan: Plan, steps: int, delta: float, tail: Tail) -> Bound | None:
    """The epsilon of the first `steps` steps of a run at `delta`; None before the first step."""
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
        known = history.details == plan.details  # otherwise anyone could have written the text in the file
        why = f": {plan.deviation}." if known else ". The reason given in the plan is not in the ledger."
        remarks.append(f"The mechanism may differ from what the problem asks for{why}")
    if history.extensions:
        remarks.append(f"The plan was extended {history.extensions} time(s) during the run.")
    if secret.is_insecure:
        remarks.append("The secret was made from a known integer, so anyone can subtract the noise. For tests only.")
    if history.source != HOST:
        remarks.append(
            f"The noise was not made by AES on the host but by {history.source}, which is not cryptographic: "
            "whoever can predict it can subtract it."
        )
        remarks.append(tail_words(tail.end))
    if history.committed < plan.steps:
        remarks.append(
            f"Stopped after {history.committed} of {plan.steps} planned steps. The epsilon of these steps holds if the "
            "stopping step was not chosen by looking at the outputs; otherwise the planned epsilon applies."
        )
    if history.rewinds:
        remarks.append(
            f"Unpublished steps were replaced {history.rewinds} time(s). This costs nothing only if neither the "
            "decision nor the new outputs used the withdrawn ones."
        )
    return remarks
