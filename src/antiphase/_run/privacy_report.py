"""The privacy report of a run: the guarantee of the steps that ran, and the planned guarantee."""

from __future__ import annotations

from dataclasses import dataclass, replace

from antiphase._accounting import epsilon_after, restated
from antiphase._bound import Bound, digits_up, rounded_up
from antiphase._escape import terminal_text
from antiphase._montecarlo import MonteCarlo
from antiphase._plan import Plan
from antiphase._run.history import HOST, History, Publication
from antiphase._run.tail import Tail, tail_words
from antiphase._secret import Secret

NO_BATCHES = (
    "The run drew no batches. The guarantee holds only if every example participated as the plan allows; this was not "
    "checked."
)


@dataclass(frozen=True)
class PrivacyReport:
    """The privacy guarantee of a run, computed from its ledger.

    **Guarantee**: `guarantee` covers every committed step, published or not. It is None if no step was taken. If the
    decision to stop depended on the outputs, only `planned` holds. If the decision to extend the run depended on the
    outputs, neither `guarantee` nor `planned` holds as stated. In that case, the epsilon of the largest number of steps
    to which the run might have been extended applies.

    Args:
        run_id: id of the run.
        unit: unit of privacy, such as "example" or "user".
        adjacency: neighbouring relation, such as "zero-out".
        delta: delta at which epsilon is stated.
        planned: epsilon of all steps of the plan. It accounts for the bounded range of the random draws.
        guarantee: epsilon of the steps that ran. It accounts for the bounded range of the random draws.
        smallest_delta: smallest delta that can be stated with the epsilon of `guarantee`, or of `planned` if no step
            was taken. There is such a limit because the draws are bounded. A limit of about 1e-323 has no effect. None
            if the noise was generated on a device. In that case, a remark states the assumption about the draws.
        steps_planned: number of steps of the plan.
        steps_run: number of steps that ran.
        publications: labels of the publications, with the number of steps committed before each.
        rewinds: number of times that unpublished steps were replayed with a different output or noisy outputs were
            discarded.
        extensions: number of times that the plan was extended during the run.
        remarks: differences between the run and the plan, and anything that weakens the guarantee.
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
    extensions: int
    remarks: tuple[str, ...]

    def __str__(self) -> str:
        """Return the report as a few lines of text. The command `antiphase report` writes a page with charts."""
        spent = "no step was taken" if self.guarantee is None else _in_words(self.guarantee, self.delta)
        published = (
            ", ".join(f"{terminal_text(p.label)} (after step {p.steps})" for p in self.publications) or "nothing so far"
        )
        times = "once" if self.rewinds == 1 else f"{self.rewinds:,} times"
        replayed = f", replayed with a different output {times}" if self.rewinds else ""
        lines = [
            f"privacy spent: {spent}",
            f"planned: {_in_words(self.planned, self.delta)}",
            f"steps: {self.steps_run:,} of {self.steps_planned:,}{replayed}",
            f"protects: one {terminal_text(self.unit)}, {self.adjacency} adjacency",
            f"published: {published}",
            *(f"remark: {terminal_text(remark)}" for remark in self.remarks),
        ]
        return "\n".join(lines)


def _in_words(bound: Bound, delta: float) -> str:
    return f"epsilon {rounded_up(bound.value)} at delta {digits_up(delta)} ({bound.kind})"


def report(
    plan: Plan, history: History, secret: Secret, run_id: str, examples: int | None, tail: Tail
) -> PrivacyReport:
    """Return the privacy report of a run with this plan and history. `examples` is None if the run draws no batches.

    Raises `Refused` if the plan's delta is too small for the bounded range of the draws, either at the epsilon of the
    steps that ran or at the planned epsilon.
    """
    delta = plan.problem.budget.delta
    entropy = early_stop_entropy(plan, history.committed, secret, run_id)
    guarantee = guarantee_after(plan, history.committed, delta, tail, entropy)
    planned = tail.covered(
        lambda smaller: plan.guarantee if smaller == delta else restated(plan.mechanism, plan.guarantee, smaller), delta
    )
    remarks = _remarks(plan, history, secret, guarantee, tail)
    return PrivacyReport(
        run_id=run_id,
        unit=plan.problem.unit,
        adjacency=plan.mechanism.adjacency,
        delta=delta,
        planned=planned,
        guarantee=guarantee,
        smallest_delta=tail.smallest_delta((guarantee or planned).value),
        steps_planned=plan.steps,
        steps_run=history.committed,
        publications=tuple(history.publications),
        rewinds=history.rewinds,
        extensions=history.extensions,
        remarks=(*remarks, *([NO_BATCHES] if examples is None else [])),
    )


def early_stop_entropy(plan: Plan, steps: int, secret: Secret, run_id: str) -> str:
    """Return the seed for a Monte Carlo estimate of the epsilon of a run's first `steps` steps, as hexadecimal digits.

    The seed is derived from the run's random secret and is used for nothing else. So the mechanism cannot depend on the
    seed, and all reports on the same steps state the same epsilon.
    """
    return secret.derive("epsilon of an early stop", run_id, plan.fingerprint, steps).hex()


def guarantee_after(plan: Plan, steps: int, delta: float, tail: Tail, entropy: str) -> Bound | None:
    """Return the epsilon of the first `steps` steps of a run at `delta`; None before the first step.

    If fewer steps ran than planned and their epsilon comes from Monte Carlo samples, `entropy` seeds the samples and is
    stored in the bound.
    """
    if steps == 0:
        return None
    if steps == plan.steps:
        return tail.covered(lambda smaller: restated(plan.mechanism, plan.guarantee, smaller), delta)

    def early(smaller: float) -> Bound:
        whole = restated(plan.mechanism, plan.guarantee, smaller)
        found = epsilon_after(plan.mechanism, steps, smaller, whole, MonteCarlo(seed=int(entropy, 16)))
        return replace(found, entropy=entropy) if found is not whole and found.kind == "confident" else found

    return tail.covered(early, delta)


def _remarks(plan: Plan, history: History, secret: Secret, guarantee: Bound | None, tail: Tail) -> list[str]:
    remarks = []
    if guarantee is not None and guarantee.value > plan.problem.budget.epsilon:
        remarks.append(f"Epsilon is above the budget of {plan.problem.budget.epsilon}.")
    if plan.deviation:
        known = history.details == plan.details  # otherwise the text in the file may have been edited
        why = f": {plan.deviation}." if known else ". The reason given in the plan is not in the ledger."
        remarks.append(f"The mechanism may differ from what the problem asks for{why}")
    if history.extensions:
        remarks.append(
            f"The plan was extended {history.extensions} time(s) during the run. The stated epsilon holds if the "
            "number of steps was not chosen by looking at the outputs; otherwise the epsilon of the largest number of "
            "steps to which the run might have been extended applies."
        )
    if secret.is_insecure:
        remarks.append(
            "The secret was made from a known integer, so anyone can subtract the noise. Use it for tests only."
        )
    if history.source != HOST:
        remarks.append(
            f"The noise was not made by AES on the host but by {history.source}, which is not cryptographic: "
            "whoever can predict the noise can subtract it."
        )
        remarks.append(tail_words(tail.end))
    if history.committed < plan.steps:
        remarks.append(
            f"Stopped after {history.committed} of {plan.steps} planned steps. The epsilon of these steps holds if the "
            "stopping step was not chosen by looking at the outputs"
            + ("." if history.extensions else "; otherwise the planned epsilon applies.")
        )
    if history.rewinds:
        remarks.append(
            f"Unpublished steps were replaced {history.rewinds} time(s). This has no privacy cost only if neither the "
            "decision to replace them nor the new outputs depended on the old outputs."
        )
    return remarks
