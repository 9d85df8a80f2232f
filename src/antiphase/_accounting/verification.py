"""Estimate, verify, release: the last check of a claim before a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Protocol

from antiphase._accounting.amplified import described, overflow_probability, whole
from antiphase._accounting.budget import Budget, check_delta, check_epsilon
from antiphase._accounting.guarantee import delta as proved_delta
from antiphase._accounting.mechanism import Mechanism
from antiphase._bound import Bound
from antiphase._check import invalid
from antiphase._errors import Refused
from antiphase._montecarlo import MonteCarlo, check_sampling
from antiphase._montecarlo import verify as sampled_verify


class _Problem(Protocol):
    @property
    def budget(self) -> Budget: ...


class Planned(Protocol):
    """The parts of a plan that `verify` reads."""

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that runs."""

    @property
    def guarantee(self) -> Bound:
        """epsilon at the budget's delta."""

    @property
    def problem(self) -> _Problem:
        """The problem, which has the budget."""


def verify(
    planned: Planned | Mechanism,
    epsilon: float | None = None,
    delta: float | None = None,
    *,
    method: Literal["certified", "plain"] = "certified",
    tau: float = 1.25,
    attempt: int = 1,
    sampling: MonteCarlo = MonteCarlo(),
) -> Bound:
    """Verify the claim of a plan or mechanism with fresh samples; return delta as a bound or raise `Refused`.

    The claim is fixed first; then samples that influenced no earlier choice decide. If delta needs no samples, it is
    computed and compared.

    **Guarantee**: a program that runs the mechanism only if this returns, and otherwise releases nothing, is
    (epsilon, delta)-differentially private under the mechanism's adjacency. A "confident" bound has its failure
    probability, a thousandth of delta over all attempts and both directions, within delta.

    Args:
        planned: a plan, whose claim is its guarantee at its budget's delta, or a mechanism.
        epsilon: epsilon of the claim, for a mechanism.
        delta: delta of the claim, for a mechanism.
        method: "certified" for weighted samples, or "plain" for unweighted ones with Bernstein's inequality, as in the
            paper.
        tau: for plain samples, the factor by which the estimate must lie below delta.
        attempt: 1 for the first verification, 2 for the second, ...: attempt r spends 2^-r of the failure probability.
            All that could have led to this release count, whatever they claimed: another epsilon or noise that is tried
            after a refusal is the next attempt. Attempts that are not counted void the guarantee.
        sampling: how much work to spend; without a seed fresh entropy is taken. Plain sampling draws all its samples.

    >>> from antiphase import BallsInBins, strategies
    >>> mechanism = Mechanism(strategies.Identity(16), BallsInBins(1, 16), noise_std=1.0)
    >>> verify(mechanism, epsilon=1.79, delta=1e-5).kind
    'upper'

    Reference: Wang et al. 2023, Thm. 9; Choquette-Choo et al. 2025 (near-exact amplification), Alg. 1, Thms. 2.1, 2.2.
    """
    mechanism, at, target = _claim(planned, epsilon, delta)
    check_sampling("verify", sampling)
    return verify_claim(mechanism, at, target, method=method, tau=tau, attempt=attempt, sampling=sampling)


def verify_claim(
    mechanism: Mechanism,
    at: float,
    target: float,
    *,
    method: Literal["certified", "plain"] = "certified",
    tau: float = 1.25,
    attempt: int = 1,
    sampling: MonteCarlo = MonteCarlo(),
) -> Bound:
    """`verify` for a mechanism and a claim (at, target) that were checked; epsilon may be 0 here."""
    reduction = mechanism.reduction
    if reduction.theorem.amplified:
        overflow = overflow_probability(reduction.setting)
        if overflow < target:
            arguments = (mechanism.strategy, whole(mechanism), mechanism.noise_std, at, target - overflow)
            found = sampled_verify(*arguments, method=method, tau=tau, attempt=attempt, sampling=sampling)
            return described(found, target, overflow)
    found = proved_delta(mechanism, at)
    if found.value <= target:
        return replace(found, value=target)
    raise Refused(
        f"({at}, {target})-differential privacy is not verified: delta is {found.value:.4g}.",
        hint="add noise, or claim a larger epsilon or delta",
    )


def _claim(planned: Any, epsilon: float | None, delta: float | None) -> tuple[Mechanism, float, float]:
    if isinstance(planned, Mechanism):
        return planned, check_epsilon("verify", epsilon), check_delta("verify", delta)
    mechanism = getattr(planned, "mechanism", None)
    if not isinstance(mechanism, Mechanism):
        raise invalid("verify", "planned", "a Plan or a Mechanism", planned, "make one with plan(problem)")
    if epsilon is not None or delta is not None:
        raise invalid(
            "verify", "epsilon", "left out for a plan", epsilon, "a plan has its claim; pass its mechanism for another"
        )
    return mechanism, planned.guarantee.value, planned.problem.budget.delta
