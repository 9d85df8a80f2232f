"""Variances of the noise in the model, from recursions over the steps.

For all kernels except `shifted_variances`, the time per step does not depend on the number of steps. Throughout, A is
the workload matrix, C is the strategy matrix, inverse[t, r] = A^-1[t, t - r], and z is white noise of standard
deviation 1. The variances of a vector are the variances of its entries. For a BLT, `decay` and `scale` are the decays
and scales of C.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled()
def autoregressive_variances(columns: Array, inverse: Array) -> Array:
    """Return the variances of s = A C^-1 z for banded C, given as columns[j, r] = C[j + r, j].

    M = C A^-1 is banded and M s = z. The covariance Z of s therefore satisfies, for j < i within the band,

        Z_ij = -(1 / M_ii) sum_{k < i} M_ik Z_kj,    Z_ii = (1 / M_ii) (1 / M_ii - sum_{k < i} M_ik Z_ki).

    Only the last W = bands(M) - 1 rows of Z are stored. Row k is in slot k mod W.
    """
    n, b = columns.shape
    d = inverse.shape[1]
    W = b + d - 2
    out = np.empty(n)
    row = np.zeros(W + 1)
    slots = np.zeros(max(W, 1))
    Z = np.zeros((max(W, 1), max(W, 1)))
    new = np.zeros(max(W, 1))
    slot = 0
    for i in range(n):
        row[:] = 0.0
        for s in range(d):
            for r in range(min(b - 1, i - s) + 1):
                row[r + s] += columns[i - r, r] * inverse[i - r, s]
        pivot = 1.0 / row[0]
        for q in range(1, min(W, i) + 1):  # row i - q is in slot (i - q) mod W
            slots[slot - q if q <= slot else slot - q + W] = -pivot * row[q]
        _weighted_rows(slots, Z, min(W, i), new)
        dot = 0.0
        for p in range(min(W, i)):
            dot += slots[p] * new[p]
        variance = pivot * pivot + dot
        out[i] = variance
        if W > 0:
            for q in range(W):
                Z[slot, q] = new[q]
                Z[q, slot] = new[q]
            Z[slot, slot] = variance
            slot = slot + 1 if slot + 1 < W else 0
    return out


@compiled(fastmath={"contract"})
def _weighted_rows(weights: Array, Z: Array, count: int, out: Array) -> None:
    """Compute out = sum_{p < count} weights[p] Z[p], four rows at a time, so that `out` is read less often."""
    W = len(out)
    out[:] = 0.0
    p = 0
    while p + 4 <= count:
        a, b, c, d = weights[p], weights[p + 1], weights[p + 2], weights[p + 3]
        for q in range(W):
            out[q] += (a * Z[p, q] + b * Z[p + 1, q]) + (c * Z[p + 2, q] + d * Z[p + 3, q])
        p += 4
    while p < count:
        for q in range(W):
            out[q] += weights[p] * Z[p, q]
        p += 1


@compiled()
def moving_sum_variances(coefficients: Array, inverse: Array) -> Array:
    """Return the variances of s = A T z, where T is banded Toeplitz with `coefficients` as its first column.

    In step t, cov[i, j] is the covariance of s_{t-i} and s_{t-j}. The array near[i, q] = B[t - i, t - i - q] holds the
    entries of B = A T near the diagonal. These are the covariances of the last entries of s with the last entries of z.
    """
    n, d = inverse.shape
    p = len(coefficients)
    out = np.empty(n)
    near = np.zeros((d, p))
    cov = np.zeros((d, d))
    for t in range(n):
        for i in range(d - 1, 0, -1):
            near[i] = near[i - 1]
            for j in range(d - 1, 0, -1):
                cov[i, j] = cov[i - 1, j - 1]
        pivot = 1.0 / inverse[t, 0]
        for q in range(p):
            value = coefficients[q]
            for r in range(1, min(d - 1, q, t) + 1):
                value -= inverse[t, r] * near[r, q - r]
            near[0, q] = pivot * value if q <= t else 0.0
        for i in range(d - 1, -1, -1):
            value = 0.0
            for q in range(i, min(p - 1, t) + 1):
                value += coefficients[q] * near[i, q - i]
            for r in range(1, min(d - 1, t) + 1):
                value -= inverse[t, r] * cov[r, i]
            cov[0, i] = pivot * value if i <= t else 0.0
            cov[i, 0] = cov[0, i]
        out[t] = cov[0, 0]
    return out


@compiled()
def buffer_variances(decay: Array, scale: Array, inverse: Array) -> Array:
    """Return the variances of s = A C^-1 z for a BLT C.

    The kernel propagates the joint covariance P of the buffers of the BLT and the last entries of s.
    """
    n, d = inverse.shape
    m = len(decay)
    size = m + d - 1
    out = np.empty(n)
    P = np.zeros((size, size))
    F = np.zeros((size, size))
    g = np.zeros(size)
    for j in range(m):
        g[j] = 1.0
        for k in range(m):
            F[j, k] = -scale[k]
        F[j, j] += decay[j]
    for j in range(m + 1, size):
        F[j, j - 1] = 1.0
    last = np.zeros(size)
    for t in range(n):
        pivot = 1.0 / inverse[t, 0]
        for k in range(m):
            last[k] = -pivot * scale[k]
        for r in range(1, d):
            last[m + r - 1] = -pivot * inverse[t, r]
        out[t] = _quadratic(P, last) + pivot * pivot
        if d > 1:
            F[m] = last
            g[m] = pivot
        P = F @ P @ F.T + np.outer(g, g)
    return out


@compiled()
def _quadratic(P: Array, v: Array) -> float:
    total = 0.0
    for i in range(len(v)):
        for j in range(len(v)):
            total += v[i] * P[i, j] * v[j]
    return total


@compiled()
def shifted_variances(response: Array, row_scale: Array, inverse: Array) -> Array:
    """Return the variances of s = A diag(row_scale) T z, where T is Toeplitz with first column `response`.

    This takes O(n^2) time.
    """
    n, d = inverse.shape
    out = np.empty(n)
    past = np.zeros((d, n))
    reverse = response[::-1].copy()
    for t in range(n):
        slot = t % d
        pivot = 1.0 / inverse[t, 0]
        for j in range(t + 1):
            past[slot, j] = row_scale[t] * reverse[n - 1 - t + j]
        for r in range(1, min(d - 1, t) + 1):
            weight = inverse[t, r]
            before = (t - r) % d
            for j in range(t - r + 1):
                past[slot, j] -= weight * past[before, j]
        total = 0.0
        for j in range(t + 1):
            past[slot, j] *= pivot
            total += past[slot, j] ** 2
        out[t] = total
    return out


@compiled()
def filter_columns(x: Array, inverse: Array) -> None:
    """Replace x by A x along the first axis, in place."""
    n, d = inverse.shape
    for t in range(n):
        for r in range(1, min(d - 1, t) + 1):
            for j in range(x.shape[1]):
                x[t, j] -= inverse[t, r] * x[t - r, j]
        for j in range(x.shape[1]):
            x[t, j] /= inverse[t, 0]


@compiled()
def buffer_response(decay: Array, scale: Array, inverse: Array, steps: int) -> Array:
    """Return the impulse response w of A C^-1 for a BLT C. A is Toeplitz, and `inverse` is the first column of A^-1."""
    d = len(inverse)
    buffers = np.zeros(len(decay))
    w = np.empty(steps)
    for i in range(steps):
        u = 1.0 if i == 0 else 0.0
        for j in range(len(decay)):
            u -= scale[j] * buffers[j]
        for j in range(len(decay)):
            buffers[j] = decay[j] * buffers[j] + u
        for r in range(1, min(d - 1, i) + 1):
            u -= inverse[r] * w[i - r]
        w[i] = u / inverse[0]
    return w


@compiled()
def buffer_response_sums(decay: Array, scale: Array, inverse: Array, steps: int) -> tuple[float, float]:
    """Return sum_i w_i^2 and sum_i (steps - i) w_i^2, where w is the impulse response of A C^-1 for a BLT C.

    A is Toeplitz, and `inverse` is the first column of A^-1. The loop stops early if w becomes constant up to rounding,
    or so close to zero that the remaining terms are negligible.
    """
    d = len(inverse)
    buffers = np.zeros(len(decay))
    past = np.zeros(d)
    total = 0.0
    weighted = 0.0
    largest = 0.0
    for i in range(steps):
        u = 1.0 if i == 0 else 0.0
        drift = 0.0
        for j in range(len(decay)):
            u -= scale[j] * buffers[j]
            drift += abs(scale[j] * buffers[j])
        for j in range(len(decay)):
            buffers[j] = decay[j] * buffers[j] + u
        w = u
        for r in range(1, d):
            w -= inverse[r] * past[r - 1]
        w /= inverse[0]
        change, level = 0.0, abs(w)
        for r in range(d - 1, 0, -1):
            if r <= i:
                change += abs(past[r - 1] - w)
            level += abs(past[r - 1])
            past[r] = past[r - 1]
        past[0] = w
        largest = max(largest, abs(w))
        total += w * w
        weighted += (steps - i) * w * w
        if i > d and drift + level <= 1e-30 * largest:  # the remaining terms are smaller than rounding errors
            return total, weighted
        if i > d and (drift + change) * steps <= 1e-16 * abs(w):
            left = float(steps - 1 - i)
            return total + left * w * w, weighted + left * (left + 1.0) / 2.0 * w * w
    return total, weighted
