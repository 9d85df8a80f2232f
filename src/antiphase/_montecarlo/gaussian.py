"""The hockey-stick divergence D of the Gaussian mechanism, and its envelope, the tightest exponential upper bound on D.

The divergence compares two Gaussians. Let rho be the squared distance of their means divided by their variance, and Phi
the standard normal distribution function. At e = epsilon, the divergence is

    D(e) = Phi(r/2 - e/r) - exp(e) Phi(-r/2 - e/r),   r = sqrt(rho),

and (1 - exp(e))_+ if rho = 0. If loss is the privacy loss, D(e) is the integral over t > 0 of exp(-t) Pr(loss > e + t).
Both factors are log-concave, so D is log-concave.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from antiphase._check import Array
from antiphase._montecarlo.rounding import GRAM, UNDERFLOW, UNIT

SMALLEST_ROOT = 1e-6  # for a smaller r, D would be a difference of nearly equal numbers
ROOT_TWO = math.sqrt(2.0)
MARGIN = 1e-9  # added to the logarithm of every bound to allow for rounding


def log_divergence(e: ArrayLike, rho: ArrayLike) -> Array:
    """Return log D(e), even where D is tiny. The error is at most `divergence_error` unless D underflows.

    Args:
        e: values of epsilon; any real numbers.
        rho: squared distance divided by the variance, as in the module docstring. A positive rho below SMALLEST_ROOT^2
            is rounded up to that value, which can only increase D.

    >>> np.exp(log_divergence([0.0, 1.0], 1.0)).round(6).tolist()
    [0.382925, 0.126937]

    Reference: Balle and Wang 2018, Thm. 8.
    """
    from scipy.special import erfcx, log_ndtr, ndtr

    e, rho = np.asarray(e, dtype=np.float64), np.asarray(rho, dtype=np.float64)
    r = np.maximum(np.sqrt(rho), SMALLEST_ROOT)
    a = e / r - r / 2.0
    near, far = np.minimum(a, 0.0), np.maximum(a, 0.0)
    with np.errstate(divide="ignore"):
        direct = np.log(ndtr(-near) - np.exp(near * r + r**2 / 2.0 + log_ndtr(-near - r)))
        # For the normal density phi, exp(e) phi(a + r) = phi(a). So in the tail, D is phi(a) times a difference of two
        # Mills ratios.
        tail = np.log((erfcx(far / math.sqrt(2.0)) - erfcx((far + r) / math.sqrt(2.0))) / 2.0) - far**2 / 2.0
        none = np.log(-np.expm1(np.minimum(e, 0.0)))
    return np.where(rho == 0.0, none, np.where(a < 0.0, direct, tail))


def divergence_error(rho: ArrayLike) -> Array:
    """Return a bound on the error of log D(e), valid where log D(e) is at least -745.

    Let r = sqrt(rho) and a = e / r - r / 2. D is computed as a difference of two numbers. Their relative difference is
    about r, or about r / a in the tail, where a < 39. The exponents in these numbers are below r^2 + 800.
    """
    r = np.maximum(np.sqrt(np.asarray(rho, dtype=np.float64)), SMALLEST_ROOT)
    return 64.0 * UNIT * (40.0 / r + 100.0 + r)


def upper_divergence(e: ArrayLike, rho: ArrayLike) -> Array:
    """Return an upper bound on D(e), at least UNDERFLOW, if `rho` has a relative error of at most GRAM."""
    rho = np.asarray(rho, dtype=np.float64)
    found = np.exp(log_divergence(e, rho * (1.0 + GRAM)) + divergence_error(rho))
    return np.clip(found, UNDERFLOW, 1.0)


@lru_cache(maxsize=1 << 14)
def log_envelope(slope: float, rho: float) -> float:
    """Return log sup_e exp(slope * e) D(e) for slope >= 0. Then D(e) <= exp(log_envelope - slope * e) for every e.

    Since log D is concave, -D'/D = exp(e) Phi(-r/2 - e/r) / D(e) increases with e. The supremum is at the e where this
    ratio equals `slope`.

    >>> round(log_envelope(1.0, 0.0), 6) == round(math.log(0.25), 6)
    True
    """
    from scipy.optimize import brentq

    if slope == 0.0:
        return 0.0
    low = math.log(slope) - math.log1p(slope)
    if rho == 0.0:
        return slope * low - math.log1p(slope) + MARGIN
    goal = math.log(slope)

    def excess(e: float) -> float:
        return _log_rate(e, rho) - goal

    step = max(1.0, rho, math.sqrt(rho))
    high = low + step
    while excess(low) > 0.0:
        low -= step
    while excess(high) < 0.0:
        low, high, step = high, high + step, 2.0 * step
    e = brentq(excess, low, high, xtol=1e-13)
    return float(slope * e + log_divergence(e, rho)) + MARGIN


def _log_rate(e: float, rho: float) -> float:
    """Return log(-D'(e) / D(e)). Uses a scalar version of `log_divergence` for speed."""
    from scipy.special import erfcx, log_ndtr, ndtr

    r = max(math.sqrt(rho), SMALLEST_ROOT)
    a = e / r - r / 2.0
    if a < 0.0:
        divergence = math.log(ndtr(-a) - math.exp(e + log_ndtr(-a - r)))
    else:
        divergence = math.log((erfcx(a / ROOT_TWO) - erfcx((a + r) / ROOT_TWO)) / 2.0) - a**2 / 2.0
    return float(e + log_ndtr(-r / 2.0 - e / r)) - divergence
