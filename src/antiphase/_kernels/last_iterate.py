"""The noise in the last iterate (the model after the last step) or in another linear function of the run.

Let z be white noise, C the strategy matrix and A the workload matrix. If a is the last row of A, the noise in the last
iterate is y . z with C^T y = a. The kernels solve this equation for several rows a of A at once, and compute gradients
of |y|^2. Arrays of shape (steps, rows) hold one row a in each column, so that the inner loops run over contiguous
memory.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled()
def last_row(inverse: Array, counted: int) -> Array:
    """Return the mean a of the last `counted` rows of A, for inverse[t, r] = A^-1[t, t - r].

    The mean a solves A^-T a = (e_{n - counted} + ... + e_{n - 1}) / counted, where e_t is the unit vector of step t.
    """
    n, d = inverse.shape
    a = np.zeros(n)
    for j in range(n - 1, -1, -1):
        value = 1.0 / counted if j >= n - counted else 0.0
        for r in range(1, min(d - 1, n - 1 - j) + 1):
            value -= inverse[j + r, r] * a[j + r]
        a[j] = value / inverse[j, 0]
    return a


@compiled()
def solve_transposed(columns: Array, rows: Array) -> Array:
    """Return the product of C^-T and `rows`, for a banded C with columns[j, r] = C[j + r, j].

    For a Toeplitz C, `columns` has a single row, which all columns of C share.
    """
    n, k = rows.shape
    y = np.empty((n, k))
    for j in range(n - 1, -1, -1):
        column = columns[j] if columns.shape[0] > 1 else columns[0]
        out = y[j]
        for i in range(k):
            out[i] = rows[j, i]
        for r in range(1, min(len(column) - 1, n - 1 - j) + 1):
            c, later = column[r], y[j + r]
            for i in range(k):
                out[i] -= c * later[i]
        pivot = 1.0 / column[0]
        for i in range(k):
            out[i] *= pivot
    return y


@compiled()
def solve_columns(columns: Array, right: Array) -> Array:
    """Return the product of C^-1 and `right`, for a banded C whose `columns` are as in `solve_transposed`."""
    n, k = right.shape
    u = right.copy()
    for j in range(n):
        column = columns[j] if columns.shape[0] > 1 else columns[0]
        pivot = 1.0 / column[0]
        for i in range(k):
            u[j, i] *= pivot
        solved = u[j]
        for r in range(1, min(len(column) - 1, n - 1 - j) + 1):
            c, later = column[r], u[j + r]
            for i in range(k):
                later[i] -= c * solved[i]
    return u


@compiled()
def outer_bands(u: Array, y: Array, gradient: Array) -> None:
    """Fill gradient[j, r] = d |y|^2 / d C[j + r, j] = -2 u_j . y_{j + r}, where y = C^-T a and u = C^-1 y.

    For a Toeplitz C, `gradient` has a single row, which receives the sums over j.
    """
    n, k = u.shape
    gradient[:] = 0.0
    for j in range(n):
        out = gradient[j] if gradient.shape[0] > 1 else gradient[0]
        for r in range(min(gradient.shape[1] - 1, n - 1 - j) + 1):
            total = 0.0
            for i in range(k):
                total += u[j, i] * y[j + r, i]
            out[r] -= 2.0 * total


@compiled()
def buffers_backward(decay: Array, scale: Array, rows: Array) -> Array:
    """Return the product of C^-T and `rows` for a BLT, by a recursion from the last step to the first.

    For each row x of `rows`, y = x - scale . b, then b <- decay b + y for each buffer b.
    """
    n, k = rows.shape
    m = len(decay)
    y, held = np.empty((n, k)), np.zeros((m, k))
    for t in range(n - 1, -1, -1):
        out = y[t]
        for i in range(k):
            out[i] = rows[t, i]
        for j in range(m):
            for i in range(k):
                out[i] -= scale[j] * held[j, i]
        for j in range(m):
            for i in range(k):
                held[j, i] = decay[j] * held[j, i] + out[i]
    return y


@compiled()
def buffered_rows(decay: Array, scale: Array, rows: Array) -> tuple[float, Array, Array, Array]:
    """Return |C^-1 x|^2 for a BLT, summed over the columns x of `rows`, with its derivatives.

    `decay` and `scale` are the decays and the negated scales of C^-1. For each column x, y = C^-1 x is computed as
    y_t = x_t - scale . B(t), with buffers B_j(t + 1) = decay_j B_j(t) + x_t. D_j is the derivative of B_j with respect
    to decay_j. Each column x has its own buffers and sums, so that the inner loops run over the columns.

    Returns:
        The sum of |C^-1 x|^2, its derivatives with respect to `decay` and then `scale`, and B and D after the last
        step.
    """
    n, k = rows.shape
    m = len(decay)
    B, D = np.zeros((m, k)), np.zeros((m, k))
    value, by_decay, by_scale, y = np.zeros(k), np.zeros((m, k)), np.zeros((m, k)), np.zeros(k)
    for t in range(n):
        x = rows[t]
        for i in range(k):
            y[i] = x[i]
        for j in range(m):
            for i in range(k):
                y[i] -= scale[j] * B[j, i]
        for i in range(k):
            value[i] += y[i] * y[i]
        for j in range(m):
            q = decay[j]
            for i in range(k):
                by_scale[j, i] += y[i] * B[j, i]
                by_decay[j, i] += y[i] * D[j, i]
                D[j, i] = q * D[j, i] + B[j, i]
                B[j, i] = q * B[j, i] + x[i]
    slopes, total = np.empty(2 * m), 0.0
    for i in range(k):
        total += value[i]
    for j in range(m):
        decay_sum, scale_sum = 0.0, 0.0
        for i in range(k):
            decay_sum += by_decay[j, i]
            scale_sum += by_scale[j, i]
        slopes[j], slopes[m + j] = -2.0 * scale[j] * decay_sum, -2.0 * scale_sum
    return total, slopes, B, D


@compiled()
def workload_gram(inverse: Array, weights: Array) -> Array:
    """Return H = A^T diag(weights) A in O(n^2) time, where inverse[t, r] = A^-1[t, t - r].

    H solves A^-T H = diag(weights) A. The matrix A^-T is upper triangular, so the rows of H are computed from the last
    to the first. The right side is lower triangular, so only its diagonal occurs in the entries of H with i <= j:

        H_ij = (weights_i A_ii [i = j] - sum_r A^-1[i + r, i] H_{i + r, j}) / A^-1_ii.
    """
    n, d = inverse.shape
    H = np.zeros((n, n))
    for i in range(n - 1, -1, -1):
        pivot = 1.0 / inverse[i, 0]
        for r in range(1, min(d - 1, n - 1 - i) + 1):
            factor = inverse[i + r, r]
            for j in range(i + 1, n):
                H[i, j] -= factor * H[i + r, j]
        for j in range(i + 1, n):
            H[i, j] *= pivot
            H[j, i] = H[i, j]
        value = weights[i] * pivot
        for r in range(1, min(d - 1, n - 1 - i) + 1):
            value -= inverse[i + r, r] * H[i + r, i]
        H[i, i] = value * pivot
    return H
