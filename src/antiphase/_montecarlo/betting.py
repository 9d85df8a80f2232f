"""An upper confidence limit for the mean of bounded, non-negative weights, valid for any number of samples.

Let 0 <= W_t <= c be independent weights with mean E W. Fix 0 < lambda <= 1 / c and the failure probability beta in
advance. For u = E W, the product prod_t (1 + lambda (u - W_t)) is non-negative and has mean 1. By Markov's inequality,
it is 1 / beta or more with probability at most beta. The product increases with u, so the u at which it equals 1 / beta
is below E W with probability at most beta. That u is the confidence limit.

In the code, `shares` are the weights divided by their bound, W / c, which lie in [0, 1]. `limit` is u / c, and `stake`
is lambda * c. `log_wealth` is the logarithm of the product.

Reference: Waudby-Smith and Ramdas 2024, section 4 (betting confidence intervals).
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._montecarlo.rounding import UNIT

LARGEST_STAKE = 1.0 - 1e-9


def log_wealth(shares: Array, stake: float, limit: float) -> float:
    """Return sum_t log(1 + stake (limit - share_t)).

    If the sum is at least log(1 / beta), conclude that the mean share is below the limit. This conclusion is wrong with
    probability at most beta.
    """
    return float(np.log1p(stake * (limit - shares)).sum())


def upper_limit(shares: Array, stake: float, log_inverse: float, precision: float = 1e-9) -> float:
    """Return the limit with log_wealth(limit) = log(1 / beta), rounded up and at most 1.

    As a function of the limit, the log wealth has a slope of at least samples x stake / 2. A rounding error in the log
    wealth therefore moves the limit by at most that error divided by this slope.

    Args:
        shares: weights divided by their bound.
        stake: the stake, which is lambda * c in the module docstring, in (0, 1].
        log_inverse: log(1 / beta), where beta is the probability that the limit fails.
        precision: relative precision of the root search.

    >>> round(upper_limit(np.zeros(1000), LARGEST_STAKE, math.log(20)), 5)
    0.003
    """
    from scipy.optimize import brentq

    def excess(limit: float) -> float:
        return log_wealth(shares, stake, limit) - log_inverse

    if excess(1.0) <= 0.0:
        return 1.0
    low = float(shares.mean())  # the log wealth is at most 0 there, by Jensen's inequality
    found = brentq(excess, low * (1.0 - 1e-9), 1.0, xtol=1e-300, rtol=precision)
    terms = float(np.abs(np.log1p(stake * (found - shares))).sum())
    rounding = 4.0 * math.log2(len(shares) + 2) * UNIT * terms / (0.5 * stake * len(shares))
    return min(1.0, found * (1.0 + 2.0 * precision) + rounding)


def best_stake(shares: Array, samples: int, log_inverse: float) -> tuple[float, float]:
    """Return the stake with the smallest expected limit for `samples` weights like `shares`, and roughly that limit.

    No guarantee depends on the choice of the stake.

    Args:
        shares: shares from a pilot run, whose samples only serve such choices. They must be independent of the weights
            for which the stake will be used.
        samples: number of weights for which the stake will be used.
        log_inverse: log(1 / beta), where beta is the probability that the limit fails.
    """
    from scipy.optimize import minimize_scalar

    goal, largest = log_inverse * len(shares) / samples, math.log(LARGEST_STAKE)

    def limit(log_stake: float) -> float:
        return upper_limit(shares, math.exp(log_stake), goal, precision=1e-5)

    found = minimize_scalar(limit, bounds=(largest - 20.0, largest), method="bounded", options={"xatol": 0.03})
    best, log_stake = min((limit(x), x) for x in (float(found.x), largest))
    return math.exp(log_stake), best
