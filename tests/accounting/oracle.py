"""Divergences computed from densities and distribution functions alone; nothing here is shared with the library."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import mpmath
import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr

Parts = Sequence[tuple[float, float]]


def gaussian_delta(mu: float, epsilon: float, digits: int = 60) -> mpmath.mpf:
    """delta of one Gaussian mechanism with shift mu, to some 40 digits."""
    with mpmath.workdps(digits):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        a = e / m - m / 2
        tail = lambda x: mpmath.erfc(x / mpmath.sqrt(2)) / 2  # noqa: E731
        return tail(a) - mpmath.exp(e) * tail(a + m)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """By bisection on `gaussian_delta`."""
    return decreasing_root(lambda e: float(gaussian_delta(mu, e) / mpmath.mpf(delta)) - 1.0, 0.0, 10.0 * mu**2 + 50.0)


def mixture_delta(p: Parts, q: Parts, epsilon: float) -> float:
    """The divergence of two mixtures of unit Gaussians on the line, given as (weight, mean), by quadrature."""

    def excess(x: float) -> float:
        return max(0.0, density(p, x) - np.exp(epsilon) * density(q, x))

    means = [mean for _, mean in (*p, *q)]
    points = np.arange(min(means) - 12.0, max(means) + 12.5, 0.5)
    return sum(quad(excess, a, b, epsabs=0, epsrel=1e-10, limit=200)[0] for a, b in pairwise(points))


def density(parts: Parts, x: float) -> float:
    return sum(w * np.exp(-((x - m) ** 2) / 2.0) for w, m in parts) / np.sqrt(2.0 * np.pi)


def sampled_delta(mu: float, rate: float, epsilon: float) -> float:
    """(1 - rate) N(0) + rate N(mu) against N(0), at any real epsilon: the loss exceeds epsilon on a ray."""
    inner = (np.exp(epsilon) - (1.0 - rate)) / rate
    if inner <= 0.0:
        return 1.0 - np.exp(epsilon)
    x = np.log(inner) / mu + mu / 2.0
    return rate * ndtr(mu - x) + (1.0 - rate) * ndtr(-x) - np.exp(epsilon) * ndtr(-x)


def twice_sampled_delta(mu: float, rate: float, epsilon: float) -> float:
    """The same for two steps: the first step's loss is integrated over, the second is in closed form."""

    def integrand(x: float) -> float:
        p = rate * np.exp(-((x - mu) ** 2) / 2.0) + (1.0 - rate) * np.exp(-(x**2) / 2.0)
        loss = np.log1p(rate * np.expm1(mu * x - mu**2 / 2.0))
        return p / np.sqrt(2.0 * np.pi) * sampled_delta(mu, rate, epsilon - loss)

    points = np.arange(-10.0, 10.5 + mu, 0.5)
    return sum(quad(integrand, a, b, epsabs=0, epsrel=1e-9)[0] for a, b in pairwise(points))


def decreasing_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a decreasing function turns negative, to 1e-12."""
    for _ in range(200):
        middle = (low + high) / 2.0
        if high - low < 1e-13 * max(1.0, high):
            break
        low, high = (middle, high) if function(middle) > 0.0 else (low, middle)
    return high
