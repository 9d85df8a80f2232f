"""delta, epsilon and the noise for a budget, for a pair of distributions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from antiphase._bound import Bound
from antiphase._montecarlo._certify import certify, check_estimates, plan_run
from antiphase._montecarlo._pair import Pair
from antiphase._montecarlo._pilot import Effort
from antiphase._montecarlo._samples import child
from antiphase._montecarlo._search import estimated_epsilon, estimated_noise, upper_epsilon, upper_noise
from antiphase._montecarlo._verify import RELEASE, SHARE, Options, failure_share, method_text, try_claim

ATTEMPTS = 8
TYPICAL = 30.0  # log(1 / beta) for choosing an estimator before delta is known
MORE = 1.02  # a further attempt aims lower by what the last one missed, and by this
POWER = 1.7  # where samples are few the limit falls more slowly than the estimate


def pair_delta(pair: Pair, epsilon: float, seed: np.random.SeedSequence, options: Options) -> Bound:
    """delta at epsilon: a proved bound or a confidence limit, whichever is smaller.

    **Guarantee**: "upper" is proved. "confident" is limit + p, where delta exceeds the limit with probability at most p
    over the randomness of this call, and p is SHARE of the delta that a pilot run estimated.
    """
    upper = pair.upper(epsilon)
    proved = Bound(upper.value, "upper", upper.method, upper.reference)
    if pair.tight:
        return proved
    effort = Effort(options.samples or pair.samples, TYPICAL, child(seed, 0), options.workers)
    removal, addition = pair.pilots(epsilon, effort)
    check_estimates((removal, addition), upper.value)
    expected = max(removal.estimate, addition.estimate)
    if expected <= 0.0:
        return _not_worth(proved, pair, options)
    effort = replace(effort, log_inverse=-math.log(failure_share(expected, 1)))
    goal = (1.0 + options.slack) * expected
    runs = plan_run(removal, goal, effort), plan_run(addition, goal, effort)
    if max(run.expected for run in runs) >= upper.value:
        return _not_worth(proved, pair, options)
    limits = certify(runs, effort, child(seed, 1))
    check_estimates(limits, upper.value)
    value = max(limit.value for limit in limits) + SHARE * expected
    confident = Bound(value, "confident", method_text(limits, expected), f"{pair.reference}; {RELEASE}")
    return min(confident, proved, key=lambda bound: bound.value)


def pair_epsilon(pair: Pair, delta: float, seed: np.random.SeedSequence, options: Options) -> Bound:
    """epsilon at delta: searched with estimates, then verified with fresh randomness as in `_verify`.

    **Guarantee**: "upper" is proved; "confident" has the failure probability of the verification folded into delta.
    """
    highest = upper_epsilon(pair, delta)
    proved = _with_value(_proved(pair, highest), highest)
    if pair.tight:
        return proved

    def find(target: float, part: np.random.SeedSequence) -> float:
        return estimated_epsilon(pair, target, part, options)

    found = _settle(find, lambda e: (pair, e), delta, seed, options)
    if found is None or found[0] >= highest:
        return _not_worth(proved, pair, options)
    return _with_value(found[1], found[0])


def pair_noise(
    pair: Pair, epsilon: float, delta: float, seed: np.random.SeedSequence, options: Options
) -> tuple[float, Bound]:
    """About the smallest noise for (epsilon, delta), and epsilon as a bound at that noise.

    **Guarantee**: as for `pair_epsilon`, at the noise returned.
    """
    highest = upper_noise(pair, epsilon, delta)
    proved = highest, _with_value(_proved(pair.at(highest), epsilon), epsilon)
    if pair.tight:
        return proved

    def find(target: float, part: np.random.SeedSequence) -> float:
        return estimated_noise(pair, epsilon, target, part, options)

    found = _settle(find, lambda s: (pair.at(s), epsilon), delta, seed, options)
    if found is None or found[0] >= highest:
        return proved[0], _not_worth(proved[1], pair, options)
    return found[0], _with_value(found[1], epsilon)


def _settle(
    find: Callable[[float, np.random.SeedSequence], float],
    claim: Callable[[float], tuple[Pair, float]],
    delta: float,
    seed: np.random.SeedSequence,
    options: Options,
) -> tuple[float, Bound] | None:
    """Search with estimates and verify; each further attempt aims a little lower and spends half the probability."""
    goal, aim = delta * (1.0 - SHARE), 1.0 + options.slack
    for attempt in range(1, ATTEMPTS + 1):
        at = find(goal / aim, child(seed, attempt, 0))
        pair, epsilon = claim(at)
        outcome = try_claim(pair, epsilon, delta, attempt, child(seed, attempt, 1), options)
        if outcome.bound is not None:
            return at, outcome.bound
        aim *= MORE * max(1.0, outcome.limit / goal) ** POWER
    return None


def _proved(pair: Pair, epsilon: float) -> Bound:
    upper = pair.upper(epsilon)
    return Bound(upper.value, "upper", upper.method, upper.reference)


def _with_value(bound: Bound, value: float) -> Bound:
    """The same proof for another number."""
    return Bound(value, bound.kind, bound.method, bound.reference)


def _not_worth(proved: Bound, pair: Pair, options: Options) -> Bound:
    method = f"{proved.method}; {options.samples or pair.samples:,} samples would certify nothing smaller"
    return Bound(proved.value, proved.kind, method, proved.reference)
