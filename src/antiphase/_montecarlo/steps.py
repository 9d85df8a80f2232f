"""Bounds on the sum Z of the weights with which `cores.py` draws the next index of a tuple of bins.

A tuple starts with k copies of one index i, called the core. The other indices are drawn one after another, none of
them more than k times. After m of them have been drawn, the counts of all indices are N = k e_i + n, where e_i is a
unit vector, n_i = 0, n_j <= k and sum n = m. Index j is allowed as the next one if j != i and n_j < k. Its weight is
exp((Kt N)_j) = exp(-rho (k + m)) exp((K N)_j). Here K = Kt + rho 1 1^T is the Gram matrix of the modes of all bins,
which has no negative entry, and Kt is the Gram matrix of the modes without their common part (`split.py`). With
v_j = (K N)_j, the sum Z of the weights of all allowed j satisfies

(a) Z <= max over i, t != i of sum_{j != i} exp(k Kt_ij + m Kt_tj), because the sum over all j != i is convex in n, and
so largest for n = m e_t.
(b) Z <= exp(-rho (k + m)) (A + T (e^S - 1) / S), because e^v lies below its chord on [0, S].
(c) Z <= exp(-rho (k + m)) (A + T + V (e^S - 1 - S) / S^2), because (e^v - 1 - v) / v^2 increases with v.

Here A is a bound on the number of allowed j, S on the largest v_j, T on the sum of the v_j, and V on the sum of the
v_j^2. S and T are the largest sums that are possible under the limits on n. They are computed by a greedy fill, which
takes the largest coefficients first, each as often as allowed.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._montecarlo.split import Split

MAX_CONVEX_OPERATIONS = 2e11  # bound (a) is skipped if it takes more operations
UNDERFLOW = 1e-300  # larger than any exponential that underflows
LARGEST_EXPONENT = 600.0


def log_step_bounds(split: Split, largest: int) -> Array:
    """Return upper bounds on log(Z / b) for b bins, indexed by [k, m], for 1 <= k, 0 <= m, k + m < largest.

    Other entries are zero.

    >>> bounds = log_step_bounds(Split(0.0, np.eye(4)), 3)
    >>> np.exp(bounds[1]).round(6).tolist()[:2]
    [0.75, 0.5]
    """
    counts = [(k, m) for k in range(1, largest) for m in range(largest - k)]
    fills = _Fills(split.whole, largest)
    convex = _convex_bounds(split, largest) if len(counts) * split.bins**3 <= MAX_CONVEX_OPERATIONS else {}
    out = np.zeros((largest, largest))
    for k, m in counts:
        filled = fills.log_bound(k, m) - split.rho * (k + m)
        out[k, m] = min(filled, convex.get((k, m), math.inf)) - math.log(split.bins)
    return out


def _convex_bounds(split: Split, largest: int) -> dict[tuple[int, int], float]:
    """Return the logs of bound (a): log max over i, t != i of sum_{j != i} exp(k Kt_ij + m Kt_tj)."""
    top = split.rest.max()
    powers = [np.exp(k * (split.rest - top)) for k in range(largest)]
    found = {}
    for k in range(1, largest):
        others = powers[k] - np.diag(np.diag(powers[k]))
        for m in range(largest - k):
            sums = others @ powers[m]
            np.fill_diagonal(sums, 0.0)
            found[k, m] = math.log(sums.max() + split.bins * UNDERFLOW) + (k + m) * top
    return found


class _Fills:
    """Computes bounds (b) and (c) of the module docstring. Parts that do not depend on k and m are computed once."""

    def __init__(self, whole: Array, largest: int) -> None:
        self.bins, self.own = len(whole), np.diag(whole)
        beside = _without_diagonal(whole)
        self.beside, self.larger = _Sorted(beside, largest + 1), (beside > self.own[:, None]).sum(axis=1)
        self.moments = _Moments(whole, largest)
        self.moments_of_others = _Moments(whole - np.diag(self.own), largest)

    def log_bound(self, k: int, m: int) -> float:
        """Return the log of the smaller of the bounds (b) and (c), without the factor exp(-rho (k + m))."""
        if k == 1:  # the m drawn indices are not allowed again, and K_jj does not contribute to v_j of an allowed j
            allowed, moments = max(self.bins - 1 - m, 0), self.moments_of_others
        else:
            allowed, moments = self.bins - 1, self.moments
        s, total = self._largest(k, m), moments.total(k, m)
        if s > LARGEST_EXPONENT:
            return math.inf
        chord = total * (math.expm1(s) / s if s > 0.0 else 1.0)
        parabola = total + moments.squares(k, m) * _curvature(s)
        return math.log(allowed + min(chord, parabola) + UNDERFLOW)

    def _largest(self, k: int, m: int) -> float:
        """Return S. An allowed j was drawn at most k - 1 times, and the fill takes each t with K_jt > K_jj before j."""
        own = np.clip(k + m - k * self.larger, 0, k - 1)
        return float((own * self.own + self.beside.fill(k, k + m - own)).max())


class _Moments:
    """Bounds on the sums over j != i of (M N)_j and (M N)_j^2, for counts N and a symmetric, non-negative matrix M."""

    def __init__(self, matrix: Array, largest: int) -> None:
        rows, own = matrix.sum(axis=1), np.diag(matrix)
        self.core = rows - own
        self.sums = _Sorted(_without_diagonal(rows - matrix), largest)
        products = matrix @ matrix
        without_core = np.maximum(products - own[:, None] * matrix, 0.0)  # row i: (M^2)_it - M_ii M_it
        self.core_square = np.diag(without_core)
        self.crossed = _Sorted(_without_diagonal(without_core), largest)
        self.products = _Sorted(products, largest)

    def total(self, k: int, m: int) -> float:
        """Return T, the bound on the sum of the v_j."""
        return float((k * self.core + self.sums.fill(k, m)).max())

    def squares(self, k: int, m: int) -> float:
        """Return V, a bound on N^T (M^2 - M_i M_i^T) N, where M_i is column i of M.

        Since N = k e_i + n, this form has three terms: one in k^2, one in k n, and one that is quadratic in n. The last
        term is bounded row by row.
        """
        others = _Sorted(self.products.fill(k, m)[None, :], m + 1).fill(k, m)
        return float((k**2 * self.core_square + 2 * k * self.crossed.fill(k, m)).max() + others[0])


class _Sorted:
    """The `count` largest numbers of each row in descending order, and their cumulative sums."""

    def __init__(self, rows: Array, count: int) -> None:
        self.values = -np.sort(-rows, axis=1)[:, :count]
        self.sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(self.values, axis=1)], axis=1)

    def fill(self, cap: int, total: int | NDArray[np.int64]) -> Array:
        """Return, for each row, the largest sum of `total` numbers from it, if each may be used at most `cap` times."""
        row, last = np.arange(len(self.values)), self.values.shape[1] - 1
        whole = np.minimum(np.asarray(total) // cap, last)
        part = np.minimum(total - cap * whole, cap)
        return cap * self.sums[row, whole] + part * self.values[row, whole]


def _without_diagonal(matrix: Array) -> Array:
    """Return the rows without their diagonal entries; for a 1 x 1 matrix, a single zero."""
    b = len(matrix)
    return matrix[~np.eye(b, dtype=bool)].reshape(b, b - 1) if b > 1 else np.zeros((1, 1))


def _curvature(s: float) -> float:
    """Return (e^s - 1 - s) / s^2. For small s, where the difference would cancel, return an upper bound."""
    if s < 1e-2:
        return 0.5 + s / 6.0 + s**2 / 24.0 + s**3 / 60.0
    return (math.expm1(s) - s) / s**2
