"""The error of a banded strategy and its gradient, by backpropagation through the covariance recursion.

Let A be the workload matrix and z white noise. M = C A^-1 has w = bands(C) + bands(A^-1) - 1 bands, and s = A C^-1 z
satisfies M s = z. Let W = w - 1. In row i of M, let p be the diagonal entry and m the W entries before it. Let Z be the
covariance of the W values of s before s_i, called the last W values. Then

    y = Z m;   cov(s_i, the last W values) = -y / p;   var(s_i) = (1 + m . y) / p^2.

Arrays over the last W steps store step k in slot k mod W, so that each step overwrites one row and one column of Z. The
recursion takes O(n w^2) time and O(n w) memory.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled()
def covariance_forward(columns: Array, inverse: Array, covariance: Array) -> None:
    """Fill covariance[i, r] = cov(s_i, s_{i-r}), for columns[j, r] = C[j + r, j] and inverse[t, r] = A^-1[t, t - r]."""
    n, w = covariance.shape
    W = max(w - 1, 1)
    row, m, y, Z = np.zeros(w), np.zeros(W), np.zeros(W), np.zeros((W, W))
    for i in range(n):
        pivot = _row(columns, inverse, i, row, m)
        y[:] = 0.0
        _add_product(Z, m, y)
        variance = (1.0 + m @ y) / (pivot * pivot)
        covariance[i, 0] = variance
        slot = i % W
        for q in range(W):
            Z[slot, q] = -y[q] / pivot
        for r in range(1, w):
            covariance[i, r] = Z[slot, (i - r) % W] if r <= i else 0.0
        for q in range(W):
            Z[q, slot] = Z[slot, q]
        Z[slot, slot] = variance


@compiled()
def covariance_backward(columns: Array, inverse: Array, covariance: Array, weights: Array, gradient: Array) -> None:
    """Fill gradient[j, r] = d(sum_i weights_i var(s_i)) / d C[j + r, j], with `covariance` from `covariance_forward`.

    In the code, G is the derivative of the weighted variances of all later steps with respect to Z. A name such as
    y_bar stands for the derivative of the weighted sum of variances with respect to y.
    """
    n, w = covariance.shape
    W = max(w - 1, 1)
    row, m, y, Z = np.zeros(w), np.zeros(W), np.zeros(W), np.zeros((W, W))
    G, y_bar, m_bar, row_bar = np.zeros((W, W)), np.zeros(W), np.zeros(W), np.zeros(w)
    for k in range(max(0, n - W), n):
        _restore(covariance, k, n - W, Z)
    gradient[:] = 0.0
    for i in range(n - 1, -1, -1):
        slot = i % W
        pivot = _row(columns, inverse, i, row, m)
        variance_bar = weights[i] + G[slot, slot]
        pivot_bar = -2.0 * variance_bar * covariance[i, 0] / pivot
        y[:] = 0.0
        for q in range(W):
            y_bar[q] = variance_bar / (pivot * pivot) * m[q]
        for r in range(1, min(w - 1, i) + 1):
            q = (i - r) % W
            y[q] = -pivot * covariance[i, r]
            if r < W:
                y_bar[q] -= 2.0 * G[slot, q] / pivot
                pivot_bar -= 2.0 * G[slot, q] * covariance[i, r] / pivot
        for q in range(W):
            G[slot, q] = G[q, slot] = Z[slot, q] = Z[q, slot] = 0.0
        if i >= W:
            for k in range(i - W, i):
                Z[slot, k % W] = Z[k % W, slot] = covariance[k, k - (i - W)]
        for q in range(W):
            m_bar[q] = variance_bar / (pivot * pivot) * y[q]
        _add_product(Z, y_bar, m_bar)
        _add_symmetric(G, y_bar, m)
        row_bar[0] = pivot_bar
        for r in range(1, w):
            row_bar[r] = m_bar[(i - r) % W] if r <= i else 0.0
        _spread(row_bar, inverse, i, gradient)


@compiled()
def gram_gradient(columns: Array, gradient: Array) -> Array:
    """Return the gradient G of a function with respect to X = C^T C, from its gradient with respect to C.

    Both gradients are given by bands: entry [j, r] is for row j + r and column j. Inside the band, the gradient with
    respect to C is 2 C G, and G is symmetric. Column j of this equation therefore gives the entries of column j of G
    from the diagonal down, because the entries above the diagonal are known from the previous columns.
    """
    n, b = columns.shape
    G = np.zeros((n, b))
    for j in range(n):
        for i in range(j, min(j + b, n)):
            value = 0.5 * gradient[j, i - j]
            for k in range(max(0, i - b + 1), i):
                value -= columns[k, i - k] * (G[k, j - k] if k < j else G[j, k - j])
            G[j, i - j] = value / columns[i, 0]
    return G


@compiled()
def _row(columns: Array, inverse: Array, i: int, row: Array, m: Array) -> float:
    """Fill row[r] = M[i, i - r] for M = C A^-1, copy it to the slots of m, and return the diagonal entry."""
    b, d = columns.shape[1], inverse.shape[1]
    row[:] = 0.0
    for r in range(min(b - 1, i) + 1):
        c = columns[i - r, r]
        for s in range(min(d - 1, i - r) + 1):
            row[r + s] += c * inverse[i - r, s]
    m[:] = 0.0
    for r in range(1, min(len(row) - 1, i) + 1):
        m[(i - r) % len(m)] = row[r]
    return row[0]


@compiled()
def _spread(row_bar: Array, inverse: Array, i: int, gradient: Array) -> None:
    """Add the contribution of row i of M to `gradient`, the gradient with respect to C.

    `row_bar` is the gradient with respect to row i of M. This function is the transpose of `_row`, as a linear map.
    """
    b, d = gradient.shape[1], inverse.shape[1]
    for r in range(min(b - 1, i) + 1):
        total = 0.0
        for s in range(min(d - 1, i - r) + 1):
            total += row_bar[r + s] * inverse[i - r, s]
        gradient[i - r, r] += total


@compiled()
def _restore(covariance: Array, k: int, first: int, Z: Array) -> None:
    """Copy the covariances of step k with steps `first`, ..., k from `covariance` to the window Z."""
    W = len(Z)
    for r in range(min(W - 1, k - max(first, 0)) + 1):
        Z[k % W, (k - r) % W] = Z[(k - r) % W, k % W] = covariance[k, r]


@compiled()
def _add_product(Z: Array, v: Array, out: Array) -> None:
    """Compute out += Z v for symmetric Z.

    The loop runs over the rows of Z, so that the compiler can vectorise the inner loop without reordering sums.
    """
    for p in range(len(v)):
        factor = v[p]
        if factor != 0.0:
            for q in range(len(v)):
                out[q] += factor * Z[p, q]


@compiled()
def _add_symmetric(G: Array, a: Array, b: Array) -> None:
    """Compute G += (a b^T + b a^T) / 2."""
    for p in range(len(a)):
        x, y = 0.5 * a[p], 0.5 * b[p]
        for q in range(len(a)):
            G[p, q] += x * b[q] + y * a[q]
