"""The Gaussian mechanism: computes delta, epsilon or mu from the other two, accurately even for extreme values.

Let mu = sensitivity / noise_std, a = epsilon / mu - mu / 2 and b = a + mu, and let phi and Phi be the density and the
distribution function of the standard normal distribution. Then

    delta = Phi(-a) - e^epsilon Phi(-b) = phi(a) (R(a) - R(b)),     R(x) = Phi(-x) / phi(x),

since e^epsilon phi(b) = phi(a). R is the Mills ratio. For small mu, R(a) - R(b) is computed as the integral of
-R'(x) = 1 - x R(x) from a to b. `delta`, `epsilon` and `shift` round to the safe side.

Reference: Balle and Wang 2018, Thm 8; Dong, Roth and Su 2019, Cor. 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from antiphase._check import Array

ROUNDING = 1e-12  # generous bound on the relative error of delta, if `a` and mu are exact
SHIFT = 1e-14  # relative amount by which `a` is moved to the safe side
FARTHEST = 100.0  # for larger `a`, delta is below 1e-2000
NEAREST = -40.0  # for smaller `a`, delta differs from 1 by less than 1e-300
LINEAR = 0.1  # relative changes of delta up to this size are at most twice their linear approximation


def delta(mu: float, epsilon: float) -> float:
    """Return the smallest delta at `epsilon`, rounded up, for mu = sensitivity / noise_std.

    >>> round(delta(1.0, 1.0), 6)
    0.126937
    """
    a = epsilon / mu - mu / 2.0
    error_of_a = 1e-15 * (epsilon / mu + mu / 2.0)
    if a == math.inf or a - error_of_a > FARTHEST:
        return math.nextafter(0.0, 1.0)
    relative = error_of_a * 2.0 / _mills(max(a, -30.0))
    if relative > LINEAR:  # the two terms of `a` nearly cancel, so few or none of its digits are correct
        a, relative = a - error_of_a, 0.0
        if a < NEAREST:
            return 1.0
    relative += ROUNDING
    return min(1.0, math.nextafter(math.exp(log_delta(mu, a)) * (1.0 + relative), 1.0))


def epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon >= 0 at `delta`, rounded up, for mu = sensitivity / noise_std.

    >>> round(epsilon(1.0, 1e-6), 4)
    4.8866
    """
    from scipy.special import ndtri_exp

    target = math.log(delta) - 3.0 * ROUNDING
    if log_delta(mu, -mu / 2.0) <= target:
        return 0.0
    a = _bisect(lambda a: log_delta(mu, a) <= target, -mu / 2.0, -float(ndtri_exp(target)))
    a += SHIFT * (abs(a) + mu)
    return math.nextafter(mu * (a + mu / 2.0) * (1.0 + 4e-16), math.inf)


def shift(epsilon: float, delta: float) -> float:
    """Return the largest mu for which the Gaussian mechanism is (epsilon, delta)-private, rounded down.

    The smallest noise multiplier for (epsilon, delta) is 1 / mu.

    >>> round(1.0 / shift(1.0, 1e-6), 4)
    4.2247
    """
    from scipy.special import ndtri_exp

    target = math.log(delta) - 3.0 * ROUNDING
    quantile = -float(ndtri_exp(target))
    # Since delta <= Phi(-a), the mu that gives a = quantile is a lower bound on the result.
    low = math.sqrt(quantile**2 + 2.0 * epsilon) - quantile
    low = 2.0 * epsilon / (low + 2.0 * quantile) if quantile > 0.0 else low
    high = 2.0 * low
    while log_delta(high, epsilon / high - high / 2.0) <= target:
        high *= 2.0
    mu = _bisect(lambda mu: log_delta(mu, epsilon / mu - mu / 2.0) > target, low, high)
    return mu * (1.0 - 4.0 * SHIFT)


def log_delta(mu: float, a: float) -> float:
    """Return log delta at epsilon = mu (a + mu / 2), accurate to ROUNDING. For a > FARTHEST, return an upper bound."""
    if a > FARTHEST:
        return -a * a / 2.0
    if mu <= 1.0:
        return -a * a / 2.0 - math.log(2.0 * math.pi) / 2.0 + math.log(_mills_drop(a, mu))
    if a >= 0.0:
        return -a * a / 2.0 - math.log(2.0 * math.pi) / 2.0 + math.log(_mills(a) - _mills(a + mu))
    density = math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi)
    return math.log1p(-math.erfc(-a / math.sqrt(2.0)) / 2.0 - density * _mills(a + mu))


def _mills(x: float) -> float:
    """Return R(x) = Phi(-x) / phi(x)."""
    from scipy.special import erfcx

    return math.sqrt(math.pi / 2.0) * float(erfcx(x / math.sqrt(2.0)))


def _mills_drop(a: float, mu: float) -> float:
    """Return R(a) - R(a + mu) without cancellation, as the integral of 1 - x R(x)."""
    from scipy.special import erfcx

    nodes, weights = _legendre()
    x = a + mu * nodes
    ratio = math.sqrt(math.pi / 2.0) * erfcx(x / math.sqrt(2.0))
    return mu * float(weights @ (1.0 - x * ratio))


@cache
def _legendre() -> tuple[Array, Array]:
    """Return Gauss-Legendre nodes and weights on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(20)
    return (nodes + 1.0) / 2.0, weights / 2.0


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the smallest number for which `holds`, by bisection. `holds` must be false at `low` and true at `high`."""
    for _ in range(200):
        middle = (low + high) / 2.0
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
