"""Verification of a privacy claim with fresh samples before a run (estimate, verify, release)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Protocol

from antiphase._accounting.amplified import coupling_of, overflow_probability, untruncated, with_overflow
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
        """Bound on epsilon at the delta of the budget."""

    @property
    def problem(self) -> _Problem:
        """The problem. Its budget states delta."""


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
    """Verify the privacy claim of a plan or mechanism with fresh samples. Return delta as a bound, or raise `Refused`.

    The claim must be fixed before this call, so that the samples influence no part of it. If delta can be computed
    without samples, the function compares the computed delta with the claim instead.

    **Guarantee**: a program that runs the mechanism only if this function returns, and otherwise releases nothing, is
    (epsilon, delta)-differentially private under the mechanism's adjacency. Delta includes the failure probability of a
    "confident" bound. This probability is at most a thousandth of delta, over all attempts and for removal and addition
    together.

    Args:
        planned: a plan or a mechanism. A plan claims its own guarantee at the delta of its budget.
        epsilon: epsilon of the claim; only for a mechanism.
        delta: delta of the claim; only for a mechanism.
        method: "certified" for importance-weighted samples, or "plain" for unweighted samples with Bernstein's
            inequality, as in Choquette-Choo et al. 2025.
        tau: for "plain", the factor by which the estimate must be below delta.
        attempt: 1 for the first verification, 2 for the second, and so on. Attempt r spends a fraction 2^-r of the
            failure probability. Count every attempt that could have led to this release, whatever it claimed. If you
            try another epsilon or noise after a refusal, that is the next attempt. Uncounted attempts void the
            guarantee.
        sampling: Monte Carlo settings. Without a seed, fresh entropy is drawn. "plain" always draws all samples.

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
    """Verify the claim that a mechanism is (at, target)-private, as `verify` does, but without checking arguments.

    Args:
        mechanism: the mechanism.
        at: epsilon of the claim, which may be 0.
        target: delta of the claim.
        method: as for `verify`.
        tau: as for `verify`.
        attempt: as for `verify`.
        sampling: as for `verify`.
    """
    reduction = mechanism.reduction
    if reduction.theorem.amplified:
        overflow, coupling = overflow_probability(reduction.setting), coupling_of(mechanism)
        if overflow < target and coupling.covers(at):
            real = (at - coupling.epsilon, coupling.real_delta(target - overflow))
            arguments = (mechanism.strategy, untruncated(mechanism), mechanism.noise_std, *real)
            found = sampled_verify(*arguments, method=method, tau=tau, attempt=attempt, sampling=sampling)
            return with_overflow(found, target, overflow)
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
        raise invalid("verify", "planned", "a Plan or a Mechanism", planned, "create a plan with plan(problem)")
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if value is not None:
            hint = "a plan states its own claim; to verify another one, pass plan.mechanism"
            raise invalid("verify", name, "omitted for a plan", value, hint)
    return mechanism, planned.guarantee.value, planned.problem.budget.delta
