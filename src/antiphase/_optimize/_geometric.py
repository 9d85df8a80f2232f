"""Geometric sums and their derivatives, to full accuracy for every ratio from -1 to 1."""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array

SMALL = 0.05  # count x rate below which the series is used
TERMS = 10


class GeometricSums:
    """P = sum x^i, P' = sum i x^(i-1) and R = sum i^2 x^(i-1) over 0 <= i < count, so that sum i x^i = x P'.

    (1 - x) times each telescopes to lower sums. Where x is so near 1 that this cancels, the series in -log x, whose
    coefficients are sums of powers of integers, takes its place.

    >>> [float(s) for s in GeometricSums(3)(np.array(1.0), np.array(0.0))]
    [3.0, 3.0, 5.0]
    """

    def __init__(self, count: int) -> None:
        self._count = count
        sums = _power_sums(count, TERMS + 2)
        signs = [(-1.0) ** p / math.factorial(p) for p in range(TERMS)]
        self._series = [[sign * float(sums[p + q]) for p, sign in enumerate(signs)] for q in range(3)]

    def __call__(self, ratio: Array, rate: Array) -> tuple[Array, Array, Array]:
        """P, P' and R for an array of ratios x, given with their rates -log|x|."""
        n = float(self._count)
        if n == 0:
            return np.zeros_like(rate), np.zeros_like(rate), np.zeros_like(rate)
        small = (ratio > 0.0) & (rate * n < SMALL)
        x, safe = np.where(small, 0.5, ratio), np.where(small, math.log(2.0), rate)
        rest = np.where(x > 0.0, -np.expm1(-safe), 1.0 - x)
        last = np.exp(-(n - 1.0) * safe) if n > 1 else np.ones_like(safe)  # |x|^(n - 1)
        last *= np.where((x < 0.0) & (self._count % 2 == 0), -1.0, 1.0)
        plain = (1.0 - x * last) / rest
        slope = (plain - n * last) / rest
        second = (2.0 * slope - plain + (1.0 - (n - 1.0) ** 2) * last) / rest
        if not small.any():
            return plain, slope, second
        near = np.where(small, rate, 0.0)
        exact = [np.polynomial.polynomial.polyval(near, series) for series in self._series]
        over = np.exp(near)
        pairs = zip((exact[0], exact[1] * over, exact[2] * over), (plain, slope, second), strict=True)
        plain, slope, second = (np.where(small, series, closed) for series, closed in pairs)
        return plain, slope, second


def _power_sums(count: int, largest: int) -> list[int]:
    """sum over 0 <= i < count of i^q for q = 0, ..., largest, exactly, by Pascal's identity."""
    sums: list[int] = []
    for q in range(largest + 1):
        lower = sum(math.comb(q + 1, j) * sums[j] for j in range(q))
        sums.append((count ** (q + 1) - lower) // (q + 1))
    return sums
