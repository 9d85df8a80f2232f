"""Certificates: a privacy claim is fixed first, and then confirmed with fresh, reproducible samples.

Planning and calibration compare mechanisms with samples whose seeds are hashes of the arguments. Such seeds are not
random, so a bound found this way has no proper failure probability. The claim about the chosen mechanism is therefore
certified afterwards with 256 bits of fresh entropy that influenced no earlier choice. The bound stores the entropy, so
that the certificate can be recomputed, as `Plan.load` does. The entropy is not secret. Whoever is given a bound cannot
tell that its entropy was drawn at random, so the public function `verify` draws its own.

In a few percent of all cases, the samples do not confirm a claim although it is true. The certificate is then tried
again with new samples. A thousandth of delta is reserved for the probability that a false claim is confirmed. Attempt r
may use a fraction 2^-r of that reserve, so by a union bound all attempts together stay within it. The first attempts
claim the epsilon that the search found. The later attempts claim the budget's epsilon, which is slightly larger,
because calibration leaves a margin.
"""

from __future__ import annotations

from dataclasses import replace

from antiphase._accounting.amplified import amplified_epsilon, fresh_entropy, seeded
from antiphase._accounting.budget import Budget
from antiphase._accounting.guarantee import seeded_epsilon
from antiphase._accounting.mechanism import Mechanism
from antiphase._accounting.verification import verify_claim
from antiphase._bound import Bound
from antiphase._errors import NotProved, Refused
from antiphase._montecarlo import LARGEST_EPSILON, MonteCarlo

ATTEMPTS = 16
ATTEMPTS_AT_FOUND_EPSILON = 4  # the remaining attempts use the budget's epsilon


def certified(mechanism: Mechanism, found: Bound, budget: Budget, sampling: MonteCarlo = MonteCarlo()) -> Bound:
    """Certify an epsilon of the mechanism with fresh entropy, and return it as a bound.

    Tries to certify `found.value` first, then the budget's epsilon. Raises `NotProved` if both fail.

    **Guarantee**: the mechanism is (epsilon, delta)-differentially private. Delta includes the failure probability over
    the entropy drawn in this call. The mechanism and `found` must not depend on that entropy.

    Args:
        mechanism: mechanism calibrated to the budget.
        found: bound on epsilon from calibration, at most the budget's epsilon.
        budget: privacy budget. All claims use its delta. Its epsilon is claimed if samples do not confirm `found`.
        sampling: Monte Carlo settings. With a seed, no entropy is drawn and the same arguments give the same result.
    """
    entropy = fresh_entropy(sampling)
    for epsilon, attempts in (
        (found.value, range(1, ATTEMPTS_AT_FOUND_EPSILON + 1)),
        (budget.epsilon, range(ATTEMPTS_AT_FOUND_EPSILON + 1, ATTEMPTS + 1)),
    ):
        confirmed = _confirmed(mechanism, epsilon, budget.delta, sampling, entropy, attempts)
        if confirmed is not None:
            return confirmed
    raise NotProved(
        f"Fresh samples did not confirm {budget} for the calibrated noise in {ATTEMPTS} attempts.",
        hint="try again, or allow more samples: sampling=MonteCarlo(samples=...)",
    )


def restated(mechanism: Mechanism, stated: Bound, delta: float) -> Bound:
    """Recompute a stored bound on epsilon from its entropy. Return the stored value if confirmed, else a new bound.

    A bound that was stored without entropy is recomputed with a seed that is a hash of the arguments.

    Args:
        mechanism: the mechanism that the bound is about.
        stated: the stored bound on epsilon.
        delta: delta at which the bound holds.
    """
    if not mechanism.reduction.theorem.amplified:
        return seeded_epsilon(mechanism, delta)
    if 0.0 <= stated.value <= LARGEST_EPSILON:
        every = range(1, ATTEMPTS + 1)
        found = _confirmed(mechanism, stated.value, delta, MonteCarlo(), stated.entropy, every)
        if found is not None:
            return found
    return amplified_epsilon(mechanism, delta, MonteCarlo(), stated.entropy)


def drawn_like(stated: Bound) -> MonteCarlo:
    """Return Monte Carlo settings seeded with the bound's entropy.

    Reports and `antiphase account` use them to compute epsilon for other deltas and numbers of steps reproducibly.
    """
    return MonteCarlo(seed=int(stated.entropy or "0", 16))


def _confirmed(
    mechanism: Mechanism, epsilon: float, delta: float, sampling: MonteCarlo, entropy: str, attempts: range
) -> Bound | None:
    drawn = seeded(sampling, "certificate", mechanism, [epsilon, delta], entropy)
    for attempt in attempts:
        try:
            found = verify_claim(mechanism, epsilon, delta, attempt=attempt, sampling=drawn)
        except Refused:
            continue
        return replace(found, value=epsilon, entropy=entropy if found.kind == "confident" else "")
    return None
