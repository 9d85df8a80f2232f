"""The error of the last iterate (the model after the last step), which needs only the last row of A.

Let N be the noising matrix, z the white noise, and A the workload matrix. If a is the last row of A, the noise in the
last iterate is a . (N z), with variance |N^T a|^2. The objective `Curvatures` has one workload A, and so one row a, for
each curvature. The argument `rows` contains these rows as the columns of an array of shape (steps, curvatures). Each
function applies N^T to the whole array, using the structure of the strategy.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase.strategies import (
    BLT,
    Banded,
    BandedInverse,
    Fourier,
    Identity,
    Strategy,
    Toeplitz,
    Tree,
    own_weight,
)

LONG_FILTER = 64  # with more coefficients, FFTs are faster than a recursive filter


def _square(y: Array) -> float:
    return float(np.einsum("ti,ti->", y, y))


def identity(strategy: Identity, rows: Array) -> float:
    """Return ||N^T rows||_F^2 for N = I."""
    return _square(rows)


def banded(strategy: Banded, rows: Array) -> float:
    """Return ||N^T rows||_F^2 by back substitution, since N^T = C^-T."""
    from antiphase._kernels import solve_transposed

    return _square(solve_transposed(strategy.columns, rows))


def toeplitz(strategy: Toeplitz, rows: Array) -> float:
    """Return ||N^T rows||_F^2, where C = T diag(1 / scales) with a Toeplitz matrix T, and N^T = T^-T diag(scales)."""
    from antiphase._kernels import solve_transposed

    scaled = rows * strategy.column_scales()[:, None]
    c = strategy.coefficients
    if len(c) <= LONG_FILTER or 32 * len(c) < strategy.steps:
        return _square(solve_transposed(np.array(c)[None], scaled))
    from antiphase._error.toeplitz import series

    return _square(_transposed_product(series(np.ones(1), c, strategy.steps), scaled))


def banded_inverse(strategy: BandedInverse, rows: Array) -> float:
    """Return ||N^T rows||_F^2, where N is Toeplitz and the coefficients are its first column."""
    return _square(_transposed_product(strategy.coefficients, rows))


def _transposed_product(first_column: Array, rows: Array) -> Array:
    """Return T^T rows for a lower-triangular Toeplitz T, by a filter that runs backwards in time."""
    from scipy.signal import fftconvolve, lfilter

    backwards = rows[::-1]
    if len(first_column) <= LONG_FILTER:
        return lfilter(first_column, [1.0], backwards, axis=0)[::-1]
    return fftconvolve(backwards, first_column[:, None], axes=0)[: len(rows)][::-1]


def blt(strategy: BLT, rows: Array) -> float:
    """Return ||N^T rows||_F^2. Running the buffers backwards in time applies N^T, because C^-1 is Toeplitz."""
    from antiphase._kernels import buffers_backward

    return _square(buffers_backward(strategy.decay, strategy.scale, rows))


def fourier(strategy: Fourier, rows: Array) -> float:
    """Return ||N^T rows||_F^2 from the matrices P and M of `fourier_variances`, with N N^T = (P P^T - M M^T) / p_0."""
    from antiphase._error.fourier import factors

    scale, plus, minus = factors(strategy)
    return (_square(_transposed_product(plus, rows)) - _square(_transposed_product(minus, rows))) / scale


def tree(strategy: Tree, rows: Array) -> float:
    """Return ||N^T rows||_F^2, computed level by level."""
    return (_online_tree if strategy.decoder == "online" else _full_tree)(strategy, rows)


def _online_tree(strategy: Tree, rows: Array) -> float:
    """Return ||N^T rows||_F^2 for the online decoder of `Tree`, by applying N^T from the root down.

    The estimate of a node is the noise that the decoder assigns to the sum of the steps below the node. At level l, it
    is w_l times the node's own noise plus (1 - w_l) times the sum of the estimates of the two children, where
    w_l = own_weight(l). For the nodes of one level, `coefficients` holds the coefficient of each estimate in
    sum_t rows_t (N z)_t.
    """
    n, total = strategy.steps, 0.0
    coefficients = rows[n - 1 :].copy()
    for level in range(strategy.height, -1, -1):
        nodes = np.arange(-(-n >> level))
        last = np.minimum((nodes + 1) << level, n) - 1
        left, right = last[0::2], last[1::2]
        coefficients[0::2][: len(right)] -= rows[right]
        open_ = left < n - 1
        coefficients[0::2][open_] += rows[left[open_]]
        weight = own_weight(level)
        total += weight**2 * _square(coefficients)
        if level:
            coefficients = (1.0 - weight) * np.repeat(coefficients, 2, axis=0)[: -(-n >> (level - 1))]
    return total


def _full_tree(strategy: Tree, rows: Array) -> float:
    """Return the sum of a^T X^-1 a over all rows a, computed from the leaves up.

    Here X = C^T C, and X_v is the Gram matrix of the subtree of node v alone. Node v adds a row of ones to C, so
    X_v = diag(X_left, X_right) + 1 1^T. Let m_v = 1^T X_v^-1 a and s_v = 1^T X_v^-1 1, with a restricted to the steps
    below v. Let m and s be the sums of m_u and s_u over the two children u of v. Then m_v = m / (1 + s) and
    s_v = s / (1 + s), and a^T X_v^-1 a is the sum of a^T X_u^-1 a over the children, minus m^2 / (1 + s).
    """
    means, sums = rows, np.ones((strategy.steps, 1))
    total = _square(rows)
    for _ in range(strategy.height):
        means, sums = _add_pairs(means), _add_pairs(sums)
        total -= float((means**2 / (1.0 + sums)).sum())
        means, sums = means / (1.0 + sums), sums / (1.0 + sums)
    return total


def _add_pairs(values: Array) -> Array:
    """Return the sum of each pair of siblings in a level. Nodes beyond the end of the run count as zero."""
    out = values[0::2].copy()
    out[: len(values) // 2] += values[1::2]
    return out


def dense(strategy: Strategy, rows: Array) -> float:
    """Return ||N^T rows||_F^2 from the dense N."""
    return _square(strategy.noising().T @ rows)
