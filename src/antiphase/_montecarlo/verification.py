"""Verifies a claim that was fixed in advance, with fresh samples (estimate, verify, release).

Let the claim be (epsilon, delta), and let p be the total failure probability that is allowed for all attempts. Attempt
r passes if the confidence limits on delta for removal and addition, each with failure probability p / 2^r / 2, are at
most delta - p. A mechanism whose true delta exceeds delta - p therefore passes in some attempt with probability at most
p. Consider the procedure that releases the output only if an attempt passes. The randomness of the verification is part
of this procedure, which is therefore (epsilon, (delta - p) + p)-differentially private. Its delta includes the failure
probability.

With a single attempt, max(delta - p, p) would be enough. With several attempts, the sum (delta - p) + p is needed,
because some attempts may test a mechanism that satisfies the claim, while others test a mechanism that does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from antiphase._bound import Bound
from antiphase._errors import Refused
from antiphase._montecarlo.certificate import Limit, certify, check_estimates, plan_run
from antiphase._montecarlo.pair import Pair
from antiphase._montecarlo.pilot import Effort
from antiphase._montecarlo.samples import child
from antiphase._montecarlo.settings import MonteCarlo

SHARE = 1e-3  # share of delta that verification may spend as its failure probability
FRESH_FACTOR = 4  # with fresh entropy, verification plans to draw this multiple of the samples that it probably needs
RELEASE = "Wang et al. 2023, Thm. 9; Waudby-Smith and Ramdas 2024"


def log_inverse_share(delta: float, attempt: int, choices: int = 1) -> float:
    """Return log(1 / beta) for one confidence limit in attempt r, where beta = SHARE * delta / choices / 2^r / 2.

    Unlike beta, the logarithm does not underflow after many attempts.

    Args:
        delta: delta of the claim.
        attempt: number of the attempt, r, from 1.
        choices: number of claims from which the caller may choose one.

    >>> round(math.exp(log_inverse_share(1e-5, 1)) / 4e8, 12)
    1.0
    """
    return (attempt + 1) * math.log(2.0) + math.log(choices) - math.log(SHARE) - math.log(delta)


@dataclass(frozen=True)
class ClaimOutcome:
    """The result of verifying a claim.

    Args:
        bound: the claimed delta as a bound, or None if the claim was not verified.
        limit: the larger of the confidence limits for removal and addition. If a proved bound verifies the claim
            without samples, it is that bound. If the pilot run predicts failure, no more samples are drawn, and it is
            the limit that the pilot run predicts.
        estimate: estimate of delta for the direction, removal or addition, that `limit` belongs to.
        error: standard error of the estimate.
    """

    bound: Bound | None
    limit: float
    estimate: float
    error: float


def try_claim(
    pair: Pair,
    epsilon: float,
    delta: float,
    attempt: int,
    seed: np.random.SeedSequence,
    sampling: MonteCarlo,
    choices: int = 1,
    more: int = 1,
) -> ClaimOutcome:
    """Try to verify the claim (epsilon, delta) with samples from `seed`, and return the outcome.

    Nothing else may use `seed`. If `choices` > 1, the caller may choose the best of that many claims. The number of
    samples is multiplied by `more`.
    """
    pair = pair.outward
    upper = pair.upper(epsilon)
    if upper.value <= delta:
        return ClaimOutcome(Bound(delta, "upper", upper.method, upper.reference), upper.value, upper.value, 0.0)
    effort = pair_effort(pair, log_inverse_share(delta, attempt, choices), child(seed, 0), sampling)
    goal = delta * (1.0 - SHARE)
    removal, addition = pair.pilots(epsilon, effort)
    highest = upper.value if upper.is_of_pair else 1.0
    check_estimates((removal, addition), highest)
    runs = plan_run(removal, goal, effort, more), plan_run(addition, goal, effort, more)
    harder = max(runs, key=lambda run: run.expected)
    if harder.expected > goal:
        return ClaimOutcome(None, harder.expected, harder.pilot.estimate, harder.pilot.error)
    limits = certify(runs, effort, child(seed, 1))
    check_estimates(limits, highest)
    worst = max(limits, key=lambda limit: limit.value)
    bound = limit_bound(pair, limits, delta, delta) if worst.value <= goal else None
    return ClaimOutcome(bound, worst.value, worst.estimate, worst.error)


def pair_effort(pair: Pair, log_inverse: float, seed: np.random.SeedSequence, sampling: MonteCarlo) -> Effort:
    """Return the limits on the work for a pair, from the settings in `sampling`. `seed` is for the pilot run."""
    return Effort(sampling.samples or pair.samples, log_inverse, seed, sampling.workers, sampling.slack / 4.0)


def limit_bound(pair: Pair, limits: tuple[Limit, Limit], value: float, delta: float) -> Bound:
    """Return `value` as a bound on delta, of kind "confident", or of kind "upper" if neither limit uses samples.

    The failure probability that the bound states is SHARE times `delta`.
    """
    if not any(limit.samples for limit in limits):
        return Bound(value, "upper", "largest possible weight of a sample", pair.reference)
    samples = " and ".join(f"{limit.samples:,}" for limit in limits)
    method = f"certified sampling, {samples} samples, failure probability {SHARE * delta:.1e} within delta"
    return Bound(value, "confident", method, f"{pair.reference}; {RELEASE}")


def verify_pair(
    pair: Pair, epsilon: float, delta: float, attempt: int, seed: np.random.SeedSequence, sampling: MonteCarlo
) -> Bound:
    """Verify the claim (epsilon, delta). Return delta as a bound, or raise `Refused`.

    **Guarantee**: see the module docstring. `attempt` counts, from 1, all verifications that could lead to the release.
    """
    # Certificates of plans have a seed. If one is repeated, it must use the same number of samples as before.
    more = 1 if sampling.seed is not None else FRESH_FACTOR
    outcome = try_claim(pair, epsilon, delta, attempt, seed, sampling, more=more)
    if outcome.bound is not None:
        return outcome.bound
    remedy = "add noise" if outcome.estimate > delta else "use more samples, or add a little noise"
    raise Refused(
        f"({epsilon}, {delta})-differential privacy is not verified: the confidence limit on delta is "
        f"{outcome.limit:.4g}, and the estimate is {outcome.estimate:.4g} +- {outcome.error:.2g}.",
        hint=f"{remedy}; the next verification is attempt {attempt + 1}",
    )
