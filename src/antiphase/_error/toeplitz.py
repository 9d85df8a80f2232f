"""Computes the error of Toeplitz strategies under Toeplitz workloads from the impulse response of B = A C^-1.

A is the workload matrix and C the strategy matrix. B is Toeplitz with first column w, the impulse response, so step t
has variance w_0^2 + ... + w_t^2. For a prefix sum, w tends to a constant. Once w has reached that limit, the remaining
sums have a closed form, so the cost stops growing with the number of steps.

For a Toeplitz matrix M, M(x) is the power series whose coefficients are the first column of M.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from antiphase._check import Array

FIRST_BLOCK, LARGEST_BLOCK = 4096, 1 << 20  # how many coefficients of w to compute at once
CONVERGED = 1e-14  # w counts as constant if its distance to the limit is at most this fraction of max |w_i|
LONG_FILTER = 64  # with more coefficients, FFTs are faster than a recursive filter
TYPICAL_REACH = 32  # w typically reaches its limit after 32 steps per coefficient of the strategy


def response(numerator: Array, denominator: Array, inverse: Array, steps: int) -> Array:
    """Return w, the first `steps` coefficients of the power series C^-1(x) A(x).

    Args:
        numerator: coefficients of the numerator of C^-1(x).
        denominator: coefficients of the denominator of C^-1(x).
        inverse: coefficients of A^-1(x), which is 1 / A(x).
        steps: number of coefficients to return.
    """
    from scipy.signal import lfilter

    if len(denominator) > LONG_FILTER:
        u = series(numerator, denominator, steps)
    else:
        u = lfilter(numerator, denominator, np.eye(1, steps)[0])
    return lfilter([1.0], inverse, u)


def response_sums(numerator: Array, denominator: Array, inverse: Array, steps: int) -> tuple[float, float]:
    """Return sum_i w_i^2 and sum_i (steps - i) w_i^2. Arguments as for `response`.

    Computes w only until it has reached its limit, and uses the limit for all later steps.
    """
    limit = _limit(numerator, denominator, inverse)
    order = len(numerator) + len(denominator) + len(inverse)
    if len(denominator) > LONG_FILTER and steps < TYPICAL_REACH * len(denominator):
        w = response(numerator, denominator, inverse, steps)
        return _sums(w, 0, steps)
    total = weighted = 0.0
    start, largest = 0, 0.0
    for w in _blocks(numerator, denominator, inverse, steps):
        a, b = _sums(w, start, steps)
        total, weighted, start = total + a, weighted + b, start + len(w)
        largest = max(largest, float(np.abs(w).max()))
        if len(w) >= order and np.abs(w[-order:] - limit).max() <= CONVERGED * largest:
            left = float(steps - start)
            return total + left * limit**2, weighted + left * (left + 1.0) / 2.0 * limit**2
    return total, weighted


def _sums(w: Array, start: int, steps: int) -> tuple[float, float]:
    left = steps - start - np.arange(len(w), dtype=np.float64)
    squares = w * w
    return math.fsum(squares), math.fsum(left * squares)


def _blocks(numerator: Array, denominator: Array, inverse: Array, steps: int) -> Iterator[Array]:
    from scipy.signal import lfilter

    first = np.zeros(max(len(numerator), len(denominator)) - 1)
    second = np.zeros(len(inverse) - 1)
    start, size = 0, max(FIRST_BLOCK, 2 * len(numerator))
    while start < steps:
        x = np.zeros(min(size, steps - start))
        x[0] = 1.0 if start == 0 else 0.0
        # Apply C^-1 first, then A. A single filter for both would have a unit root, which accumulates rounding errors.
        u, first = lfilter(numerator, denominator, x, zi=first) if len(first) else (x * numerator / denominator, first)
        w, second = lfilter([1.0], inverse, u, zi=second) if len(second) else (u / inverse, second)
        yield w
        start, size = start + len(x), min(2 * size, LARGEST_BLOCK)


def _limit(numerator: Array, denominator: Array, inverse: Array) -> float:
    """Return the limit of w_i for large i.

    If A^-1(1) is not 0, the limit is 0. A^-1(1) is 0 if there is neither weight decay nor curvature. Then
    A^-1(x) = (1 - x) E(x) with a polynomial E, and the limit is C^-1(1) / E(1).
    """
    if abs(inverse.sum()) > 1e-12 * np.abs(inverse).sum():
        return 0.0
    rest = np.cumsum(inverse)[:-1].sum()
    gain = denominator.sum() * rest
    return float(numerator.sum() / gain) if gain != 0 else math.inf


def series(numerator: Array, denominator: Array, steps: int) -> Array:
    """Return the first `steps` coefficients of numerator(x) / denominator(x).

    Uses Newton's iteration with FFTs, which takes O(n log n) time.
    """
    from scipy.signal import fftconvolve

    inverse = np.array([1.0 / denominator[0]])
    while len(inverse) < steps:
        size = min(2 * len(inverse), steps)
        correction = -fftconvolve(denominator[:size], inverse)[:size]
        correction[0] += 2.0
        inverse = fftconvolve(inverse, correction)[:size]
    return inverse if len(numerator) == 1 else fftconvolve(inverse, numerator)[:steps]
