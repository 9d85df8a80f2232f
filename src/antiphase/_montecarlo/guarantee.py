"""delta, epsilon and the noise for a budget, for a pair of distributions."""

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
TRIES = 16
GENTLE = 0.75  # epsilon falls faster than the noise grows
CHOICES = 1 << 10  # mechanisms that a calibration or a plan may choose from by their bounds
NEAR, FAR = 3e-4, 1.5e-3  # share of epsilon that calibration leaves for what a bound may lie above its estimate
TYPICAL = 30.0  # log(1 / beta) for choosing an estimator before delta is known
LEAST = 5e-324  # a bound that underflows is not zero
SMALLEST = 1e-290  # of a delta whose logarithm is taken
MORE = 1.02  # a further attempt aims lower by what the last one missed, and by this
POWER = 1.7  # where samples are few the limit falls more slowly than the estimate


def pair_delta(pair: Pair, epsilon: float, seed: np.random.SeedSequence, sampling: MonteCarlo) -> Bound:
    """delta at epsilon: a proved bound or a confidence limit, whichever is smaller.

    **Guarantee**: "upper" is proved. "confident" is limit + p, where delta exceeds the limit with probability at most p
    over the randomness of this call, and p is SHARE of the delta that a pilot run estimated.
    """
    pair = pair.outward
    upper = pair.upper(epsilon)
    proved = Bound(max(upper.value, LEAST), "upper", upper.method, upper.reference)
    if pair.tight:
        return proved
    effort = pair_effort(pair, TYPICAL, child(seed, 0), sampling)
    least = pair.least(epsilon, effort.samples, TYPICAL)
    if least >= upper.value:
        return _not_worth(proved, pair, sampling)
    removal, addition = pair.pilots(epsilon, effort)
    check_estimates((removal, addition), upper.value)
    expected = max(removal.estimate, addition.estimate, least)
    if expected <= 0.0:
        return _not_worth(proved, pair, sampling)
    effort = replace(effort, log_inverse=_log_inverse(expected, 1))
    goal = (1.0 + sampling.slack) * expected
    runs = plan_run(removal, goal, effort), plan_run(addition, goal, effort)
    if max(run.expected for run in runs) >= upper.value:
        return _not_worth(proved, pair, sampling)
    limits = certify(runs, effort, child(seed, 1))
    check_estimates(limits, upper.value)
    value = min(1.0, max(limit.value for limit in limits) + SHARE * expected)
    return min(limit_bound(pair, limits, value, expected), proved, key=lambda bound: bound.value)


def pair_epsilon(pair: Pair, delta: float, seed: np.random.SeedSequence, sampling: MonteCarlo) -> Bound:
    """epsilon at delta: searched with estimates, then verified with fresh randomness as in `_verify`.

    **Guarantee**: "upper" is proved; "confident" has the failure probability of the verification folded into delta,
    with room for CHOICES mechanisms of which one is chosen by these numbers.
    """
    highest = upper_epsilon(pair, delta)
    proved = _with_value(_proved(pair, highest), highest)
    if pair.tight:
        return proved
    found = _settled(pair, delta, seed, sampling) if _within_reach(pair, highest, delta, sampling) else None
    if found is None or found[0] >= highest:
        return _not_worth(proved, pair, sampling)
    return _with_value(found[1], found[0])


def pair_noise(
    pair: Pair,
    epsilon: float,
    delta: float,
    seed: np.random.SeedSequence,
    sampling: MonteCarlo,
    settle: Callable[[float], Bound],
) -> tuple[float, Bound]:
    """About the smallest noise for (epsilon, delta), and epsilon as a bound at that noise.

    **Guarantee**: that of `settle`, which gives epsilon at a noise; it is asked TRIES times at most.
    """
    aim = epsilon * (1.0 - (NEAR if pair.tight else FAR))
    noise = upper_noise(pair, aim, delta)
    if not pair.tight and _within_reach(pair.at(noise), aim, delta, sampling):
        target = delta * (1.0 - SHARE) / (1.0 + sampling.slack)
        noise = min(noise, estimated_noise(pair, aim, target, _log_inverse(delta, 1), noise, seed, sampling))
    for _ in range(TRIES):
        bound = settle(noise)
        if bound.value <= epsilon:
            return noise, bound
        noise *= 1.0005 * (bound.value / epsilon) ** GENTLE
    raise NotProved(f"No noise was found that gives epsilon = {epsilon}.", hint="allow more samples, or a larger delta")


def _within_reach(pair: Pair, epsilon: float, delta: float, sampling: MonteCarlo) -> bool:
    """Whether so many samples can certify so small a delta at all."""
    return pair.least(epsilon, sampling.samples or pair.samples, _log_inverse(delta, 1)) < delta


def _log_inverse(delta: float, attempt: int) -> float:
    """log(1 / beta) of one limit, with room for CHOICES mechanisms."""
    return log_inverse_share(max(delta, SMALLEST), attempt, CHOICES)


def _settled(
    pair: Pair, delta: float, seed: np.random.SeedSequence, sampling: MonteCarlo
) -> tuple[float, Bound] | None:
    """Search with estimates and verify; each further attempt aims a little lower and spends half the probability."""
    goal, aim = delta * (1.0 - SHARE), 1.0 + sampling.slack
    for attempt in range(1, ATTEMPTS + 1):
        inverse = _log_inverse(delta, attempt)
        epsilon = estimated_epsilon(pair, goal / aim, inverse, child(seed, attempt, 0), sampling)
        outcome = try_claim(pair, epsilon, delta, attempt, child(seed, attempt, 1), sampling, CHOICES)
        if outcome.bound is not None:
            return epsilon, outcome.bound
        aim *= MORE * max(1.0, outcome.limit / goal) ** POWER
    return None


def _proved(pair: Pair, epsilon: float) -> Bound:
    upper = pair.upper(epsilon)
    return Bound(upper.value, "upper", upper.method, upper.reference)


def _with_value(bound: Bound, value: float) -> Bound:
    """The same proof for another number."""
    return Bound(value, bound.kind, bound.method, bound.reference)


def _not_worth(proved: Bound, pair: Pair, sampling: MonteCarlo) -> Bound:
    method = f"{proved.method}; {sampling.samples or pair.samples:,} samples would certify nothing smaller"
    return Bound(proved.value, proved.kind, method, proved.reference)
