"""Computes delta and epsilon of a dominating pair (see `pair.py`), and the noise that a budget requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from antiphase._bound import Bound
from antiphase._errors import NotProved
from antiphase._montecarlo.certificate import certify, check_estimates, plan_run
from antiphase._montecarlo.pair import Pair
from antiphase._montecarlo.samples import child
from antiphase._montecarlo.search import estimated_epsilon, estimated_noise, upper_epsilon, upper_noise
from antiphase._montecarlo.settings import MonteCarlo
from antiphase._montecarlo.verification import SHARE, limit_bound, log_inverse_share, pair_effort, try_claim

ATTEMPTS = 8
MAX_NOISE_INCREASES = 16
NOISE_EXPONENT = 0.75  # the noise grows by (epsilon / target)^0.75, because epsilon falls faster than 1 / noise
CHOICES = 1 << 10  # number of bounds from which a calibration or a plan may choose the best one
# Calibration aims below the budget's epsilon by this fraction, because the final bound may exceed the epsilon that the
# search aims at. TIGHT_MARGIN is for pairs whose bounds need no samples (`Pair.tight`), SAMPLED_MARGIN for all others.
TIGHT_MARGIN, SAMPLED_MARGIN = 3e-4, 1.5e-3
TYPICAL_LOG_INVERSE = 30.0  # log(1 / failure probability), used to choose an estimator before delta is known
SMALLEST_BOUND = 5e-324  # replaces a bound that underflows to zero
SMALLEST_DELTA = 1e-290  # smallest delta whose logarithm is taken
# If an attempt of `_search_and_verify` fails because the confidence limit on delta exceeds the goal, the next attempt
# aims at a delta that is smaller by a factor of RETRY_FACTOR x (limit / goal)^RETRY_EXPONENT. The exponent is above 1,
# because with few samples the limit decreases more slowly than the estimate.
RETRY_FACTOR = 1.02
RETRY_EXPONENT = 1.7


def pair_delta(pair: Pair, epsilon: float, seed: np.random.SeedSequence, sampling: MonteCarlo) -> Bound:
    """Return delta at epsilon: a proved bound or a confidence limit, whichever is smaller.

    **Guarantee**: an "upper" bound is proved. A "confident" bound is limit + p, where delta exceeds the limit with
    probability at most p over the randomness of this call. Here p is SHARE (`verification.py`) times an estimate of
    delta from a pilot run (`pilot.py`).
    """
    pair = pair.outward
    upper = pair.upper(epsilon)
    proved = Bound(max(upper.value, SMALLEST_BOUND), "upper", upper.method, upper.reference)
    if pair.tight:
        return proved
    effort = pair_effort(pair, TYPICAL_LOG_INVERSE, child(seed, 0), sampling)
    least = pair.least(epsilon, effort.samples, TYPICAL_LOG_INVERSE)
    if least >= upper.value:
        return _proved_only(proved, pair, sampling)
    removal, addition = pair.pilots(epsilon, effort)
    highest = upper.value if upper.is_of_pair else 1.0
    check_estimates((removal, addition), highest)
    expected = max(removal.estimate, addition.estimate, least)
    if expected <= 0.0:
        return _proved_only(proved, pair, sampling)
    effort = replace(effort, log_inverse=_log_inverse(expected, 1))
    goal = (1.0 + sampling.slack) * expected
    runs = plan_run(removal, goal, effort), plan_run(addition, goal, effort)
    if max(run.expected for run in runs) >= upper.value:
        return _proved_only(proved, pair, sampling)
    limits = certify(runs, effort, child(seed, 1))
    check_estimates(limits, highest)
    value = min(1.0, max(limit.value for limit in limits) + SHARE * expected)
    return min(limit_bound(pair, limits, value, expected), proved, key=lambda bound: bound.value)


def pair_epsilon(pair: Pair, delta: float, seed: np.random.SeedSequence, sampling: MonteCarlo) -> Bound:
    """Return epsilon at delta, found by a search with estimates and verified with fresh samples (`verification.py`).

    **Guarantee**: an "upper" bound is proved. For a "confident" bound, delta includes the failure probability of the
    verification, even if the caller chooses the best of CHOICES such bounds.
    """
    highest = upper_epsilon(pair, delta)
    proved = _with_value(_proved(pair, highest), highest)
    if pair.tight:
        return proved
    found = _search_and_verify(pair, delta, seed, sampling) if _is_certifiable(pair, highest, delta, sampling) else None
    if found is None or found[0] >= highest:
        return _proved_only(proved, pair, sampling)
    return _with_value(found[1], found[0])


def pair_noise(
    pair: Pair,
    epsilon: float,
    delta: float,
    seed: np.random.SeedSequence,
    sampling: MonteCarlo,
    settle: Callable[[float], Bound],
) -> tuple[float, Bound]:
    """Return roughly the smallest noise for (epsilon, delta), and a bound on epsilon at that noise.

    **Guarantee**: the bound is the result of `settle`, a function that returns a bound on epsilon at a noise level.
    If that bound exceeds `epsilon`, the noise is increased. After MAX_NOISE_INCREASES bounds, `NotProved` is raised.
    """
    aim = epsilon * (1.0 - (TIGHT_MARGIN if pair.tight else SAMPLED_MARGIN))
    noise = upper_noise(pair, aim, delta)
    if not pair.tight and _is_certifiable(pair.at(noise), aim, delta, sampling):
        target = delta * (1.0 - SHARE) / (1.0 + sampling.slack)
        noise = min(noise, estimated_noise(pair, aim, target, _log_inverse(delta, 1), noise, seed, sampling))
    for _ in range(MAX_NOISE_INCREASES):
        bound = settle(noise)
        if bound.value <= epsilon:
            return noise, bound
        noise *= 1.0005 * (bound.value / epsilon) ** NOISE_EXPONENT
    raise NotProved(
        f"Found no noise level that gives epsilon = {epsilon} at delta = {delta}.",
        hint="allow more samples, or use a larger delta",
    )


def _is_certifiable(pair: Pair, epsilon: float, delta: float, sampling: MonteCarlo) -> bool:
    """Return True if the allowed number of samples may be enough to certify a delta this small."""
    return pair.least(epsilon, sampling.samples or pair.samples, _log_inverse(delta, 1)) < delta


def _log_inverse(delta: float, attempt: int) -> float:
    """Return log(1 / failure probability) of one confidence limit, if the best of CHOICES bounds may be chosen."""
    return log_inverse_share(max(delta, SMALLEST_DELTA), attempt, CHOICES)


def _search_and_verify(
    pair: Pair, delta: float, seed: np.random.SeedSequence, sampling: MonteCarlo
) -> tuple[float, Bound] | None:
    """Return a verified epsilon with its bound on delta, or None if all attempts fail.

    Each attempt searches with estimates and verifies the result. It aims at a smaller delta than the attempt before,
    and has half the failure probability.
    """
    goal, aim = delta * (1.0 - SHARE), 1.0 + sampling.slack
    for attempt in range(1, ATTEMPTS + 1):
        inverse = _log_inverse(delta, attempt)
        epsilon = estimated_epsilon(pair, goal / aim, inverse, child(seed, attempt, 0), sampling)
        outcome = try_claim(pair, epsilon, delta, attempt, child(seed, attempt, 1), sampling, CHOICES)
        if outcome.bound is not None:
            return epsilon, outcome.bound
        aim *= RETRY_FACTOR * max(1.0, outcome.limit / goal) ** RETRY_EXPONENT
    return None


def _proved(pair: Pair, epsilon: float) -> Bound:
    upper = pair.upper(epsilon)
    return Bound(upper.value, "upper", upper.method, upper.reference)


def _with_value(bound: Bound, value: float) -> Bound:
    """Return a copy of the bound with a different value."""
    return Bound(value, bound.kind, bound.method, bound.reference)


def _proved_only(proved: Bound, pair: Pair, sampling: MonteCarlo) -> Bound:
    method = f"{proved.method}; {sampling.samples or pair.samples:,} samples would certify nothing smaller"
    return Bound(proved.value, proved.kind, method, proved.reference)
