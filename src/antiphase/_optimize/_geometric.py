"""Geometric sums with weights 1, i and i^2, to full accuracy for every ratio up to 1."""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array

SMALL = 0.05  # count x rate below which the series is used
TERMS = 10


class GeometricSums:
    """P_q = sum over 0 <= i < count of i^q exp(-rate i), for q = 0, 1, 2 and rates >= 0.

    (1 - x) P_q telescopes to lower sums; where count x rate is small that cancels, and the series in the rate, whose
    coefficients are sums of powers of integers, takes its place.

    >>> [float(p) for p in GeometricSums(3)(np.array(0.0))]
    [3.0, 3.0, 5.0]
    """

    def __init__(self, count: int) -> None:
        self._count = count
        sums = _power_sums(count, TERMS + 2)
        signs = [(-1.0) ** p / math.factorial(p) for p in range(TERMS)]
        self._series = [[sign * float(sums[p + q]) for p, sign in enumerate(signs)] for q in range(3)]

    def __call__(self, rate: Array) -> tuple[Array, Array, Array]:
        """P_0, P_1 and P_2 for an array of rates."""
        n = float(self._count)
        if n == 0:
            return np.zeros_like(rate), np.zeros_like(rate), np.zeros_like(rate)
        small = rate * n < SMALL
        safe = np.where(small, 1.0, rate)
        rest, last = -np.expm1(-safe), np.exp(-n * safe)
        zeroth = -np.expm1(-n * safe) / rest
        first = (zeroth - 1.0 - (n - 1.0) * last) / rest
        second = (2.0 * first - zeroth + 1.0 - (n - 1.0) ** 2 * last) / rest
        if not small.any():
            return zeroth, first, second
        near = np.where(small, rate, 0.0)
        exact = [np.polynomial.polynomial.polyval(near, series) for series in self._series]
        pairs = zip(exact, (zeroth, first, second), strict=True)
        zeroth, first, second = (np.where(small, series, closed) for series, closed in pairs)
        return zeroth, first, second


def _power_sums(count: int, largest: int) -> list[int]:
    """sum over 0 <= i < count of i^q for q = 0, ..., largest, exactly, by Pascal's identity."""
    sums: list[int] = []
    for q in range(largest + 1):
        lower = sum(math.comb(q + 1, j) * sums[j] for j in range(q))
        sums.append((count ** (q + 1) - lower) // (q + 1))
    return sums
