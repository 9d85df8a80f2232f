"""Certificates: a claim that is fixed first, then confirmed by samples that can be drawn again.

Planning and calibration compare mechanisms by samples whose seeds are hashes of the question. Nothing about such a seed
is random, so what they state has no failure probability in the strict sense. Hence the claim of what they chose is
certified afterwards by `verify`, with 256 bits of fresh entropy that nothing was chosen by. The entropy is kept in the
bound: it lets the certificate be computed again, as `Plan.load` does. It is no secret, and no proof to anyone who did
not draw it; `verify` draws its own.

A certificate may fail by chance although the claim is true, in some percent of all cases. Then it is tried again, with
samples of its own: attempt r spends 2^-r of the failure probability, so all attempts together spend a thousandth of
delta, as one would (union bound). The first attempts are for the epsilon that the search found, the others for that of
the budget, which is larger by the margin that calibration leaves.
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
AT_WHAT_WAS_FOUND = 4  # attempts for the epsilon that the search found


def certified(mechanism: Mechanism, found: Bound, budget: Budget, sampling: MonteCarlo = MonteCarlo()) -> Bound:
    """A bound on epsilon by a certificate with fresh entropy: as it was found, or the budget's; or `NotProved`.

    **Guarantee**: the mechanism is (epsilon, delta)-differentially private, except with a probability, over the entropy
    drawn in this call, that is within delta. Mechanism and bound must have been found without that entropy.

    Args:
        mechanism: calibrated to the budget.
        found: epsilon as calibration found it, at most the budget's.
        budget: epsilon where that is not confirmed, and delta.
        sampling: how much work to spend; with a seed no entropy is drawn, and the same arguments give the same answer.
    """
    entropy = fresh_entropy(sampling)
    for epsilon, attempts in (
        (found.value, range(1, AT_WHAT_WAS_FOUND + 1)),
        (budget.epsilon, range(AT_WHAT_WAS_FOUND + 1, ATTEMPTS + 1)),
    ):
        confirmed = _confirmed(mechanism, epsilon, budget.delta, sampling, entropy, attempts)
        if confirmed is not None:
            return confirmed
    raise NotProved(
        f"Fresh samples did not confirm {budget} for the noise found, in {ATTEMPTS} attempts.",
        hint="try again with other samples, or allow more of them: sampling=MonteCarlo(samples=...)",
    )


def restated(mechanism: Mechanism, stated: Bound, delta: float) -> Bound:
    """A bound on epsilon computed again from its own entropy: the stated value if that is confirmed, else another one.

    Bounds that were stored without entropy are computed by a hash of the question.

    Args:
        mechanism: the mechanism that runs.
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
    """Samples that belong to a stated bound: other questions about its mechanism get the same answer every time."""
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
