"""Banded triangular solves, convolutions of rows, and sums over the Gram matrix of a workload."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled(nogil=True, error_model="numpy")
def solve_bands(bands: Array, right: Array) -> Array:
    """Return the product of C^-1 and `right`, for a banded C with bands[t, r] = C[t, t - r].

    If `bands` has a single row, all rows of C share it.
    """
    steps, width = right.shape
    out = np.empty((steps, width))
    for t in range(steps):
        row = bands[t] if bands.shape[0] > 1 else bands[0]
        for i in range(width):
            out[t, i] = right[t, i]
        for r in range(1, min(len(row), t + 1)):
            if row[r] != 0.0:
                for i in range(width):
                    out[t, i] -= row[r] * out[t - r, i]
        for i in range(width):
            out[t, i] /= row[0]
    return out


@compiled(nogil=True)
def convolve_rows(kernel: Array, rows: Array, out: Array) -> None:
    """Compute out[r, j] = sum_{i <= j} kernel[i] rows[r, j - i], without the terms where kernel[i] is not positive.

    If all numbers are non-negative, no terms cancel, so even the smallest results have a small relative error.
    """
    count, size = rows.shape
    out[:] = 0.0
    for i in range(size):
        weight = kernel[i]
        if weight > 0.0:
            for r in range(count):
                source, target = rows[r, : size - i], out[r, i:]
                for j in range(size - i):
                    target[j] += weight * source[j]


@compiled()
def shifted_gram(inverse: Array, weights: Array, size: int) -> Array:
    """Return Q[r, s] = sum_j H[j + r, j + s] for H = A^T diag(weights) A, with inverse[t, r] = A^-1[t, t - r].

    A is the workload matrix. H solves A^-T H = diag(weights) A. A^-T is upper triangular, so the rows of H are computed
    from the last to the first. The right side is lower triangular. So for i <= j,

        H_ij = (weights_i A_ii [i = j] - sum_r A^-1[i + r, i] H_{i + r, j}) / A^-1_ii.

    In each row, only entries near the diagonal are computed, from the farthest to the nearest. In the code,
    near[k, q] = H[i + k, i + k + q].
    """
    n, d = inverse.shape
    width = max(size, d)
    sums = np.zeros((size, width))  # sums[i, q] is the sum of H[j, j + q] over all j >= i
    total = np.zeros(width)
    near = np.zeros((d, width))
    for i in range(n - 1, -1, -1):
        for k in range(d - 1, 0, -1):
            near[k] = near[k - 1]
        pivot = 1.0 / inverse[i, 0]
        for q in range(min(width, n - i) - 1, -1, -1):
            value = weights[i] * pivot if q == 0 else 0.0
            for r in range(1, min(d - 1, n - 1 - i) + 1):
                # This reads H[i + r, i + q], or if q < r, the equal entry H[i + q, i + r].
                value -= inverse[i + r, r] * (near[r, q - r] if q >= r else near[q, r - q])
            near[0, q] = pivot * value
        for q in range(min(width, n - i)):
            total[q] += near[0, q]
        if i < size:
            sums[i] = total
    Q = np.zeros((size, size))
    for r in range(min(size, n)):
        for s in range(r, min(size, n)):
            Q[r, s] = Q[s, r] = sums[r, s - r]
    return Q
