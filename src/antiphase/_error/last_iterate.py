"""Error of the last iterate: only the last row of A is needed.

If a is the last row of A, the noise in the last iterate is a . (N z), with variance |N^T a|^2. N^T is applied to the
rows for all curvatures at once, as an array of shape (steps, rows), using the structure of each strategy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._objective import Curvatures
from antiphase._workload import Workload
from antiphase.strategies import (
    BLT,
    Banded,
    BandedInverse,
    Fourier,
    Identity,
    Stamped,
    Strategy,
    Toeplitz,
    Tree,
    own_weight,
)

MAX_ENTRIES = 1 << 22  # largest number of entries to process at once
LONG_FILTER = 64  # above this many coefficients, FFTs are faster than a filter


def last_iterate_variance(strategy: Strategy, workload: Workload, objective: Curvatures) -> float:
    """Return the variance of the last step for sigma = 1, averaged over the curvatures with their weights."""
    n = strategy.steps
    size = max(1, MAX_ENTRIES // n)
    total = 0.0
    for i in range(0, len(objective.values), size):
        total += squared_norm(strategy, objective.last_rows(workload, n, slice(i, i + size)))
    return total


def squared_norm(strategy: Strategy, rows: Array) -> float:
    """Return ||N^T rows||_F^2 for rows of shape (steps, count).

    >>> squared_norm(Toeplitz([1.0, 0.5], 2), np.array([[0.0], [1.0]]))
    1.25
    """
    return _METHODS.get(type(strategy), _dense)(strategy, rows)


def _square(y: Array) -> float:
    return float(np.einsum("ti,ti->", y, y))


def _identity(strategy: Identity, rows: Array) -> float:
    return _square(rows)


def _banded(strategy: Banded, rows: Array) -> float:
    from antiphase._kernels import solve_transposed

    return _square(solve_transposed(strategy.columns, rows))


def _toeplitz(strategy: Toeplitz, rows: Array) -> float:
    """Use C = T diag(1 / scales), so that N^T = T^-T diag(scales)."""
    from antiphase._kernels import solve_transposed

    scaled = rows * strategy.column_scales()[:, None]
    c = strategy.coefficients
    if len(c) <= LONG_FILTER or 32 * len(c) < strategy.steps:
        return _square(solve_transposed(c[None], scaled))
    from antiphase._error.toeplitz import series

    return _square(_transposed_product(series(np.ones(1), c, strategy.steps), scaled))


def _banded_inverse(strategy: BandedInverse, rows: Array) -> float:
    return _square(_transposed_product(strategy.coefficients, rows))


def _transposed_product(first_column: Array, rows: Array) -> Array:
    """Return T^T rows for a Toeplitz T, by a filter that runs backwards in time."""
    from scipy.signal import fftconvolve, lfilter

    backwards = rows[::-1]
    if len(first_column) <= LONG_FILTER:
        return lfilter(first_column, [1.0], backwards, axis=0)[::-1]
    return fftconvolve(backwards, first_column[:, None], axes=0)[: len(rows)][::-1]


def _blt(strategy: BLT, rows: Array) -> float:
    """Run the buffers of N backwards in time, which applies N^T because C^-1 is Toeplitz."""
    from antiphase._kernels import buffers_backward

    return _square(buffers_backward(strategy.decay, strategy.scale, rows))


def _fourier(strategy: Fourier, rows: Array) -> float:
    """Use N N^T = (P P^T - M M^T) / p_0 with Toeplitz P and M, as in `fourier_variances`."""
    from antiphase._error.fourier import factors

    scale, plus, minus = factors(strategy)
    return (_square(_transposed_product(plus, rows)) - _square(_transposed_product(minus, rows))) / scale


def _stamped(strategy: Stamped, rows: Array) -> float:
    """Add up the blocks of the rows, since N = I (x) N_0."""
    blocks = rows.reshape(strategy.repeats, strategy.strategy.steps, -1)
    return squared_norm(strategy.strategy, np.concatenate(list(blocks), axis=1))


def _tree(strategy: Tree, rows: Array) -> float:
    return (_online_tree if strategy.decoder == "online" else _full_tree)(strategy, rows)


def _online_tree(strategy: Tree, rows: Array) -> float:
    """Apply the transpose of the online decoder, from the root down.

    `asked` holds the coefficients of the estimates of a level. Each estimate is w_l times the node's own noise plus
    (1 - w_l) times the sum of its two children.
    """
    n, total = strategy.steps, 0.0
    asked = rows[n - 1 :].copy()
    for level in range(strategy.height, -1, -1):
        nodes = np.arange(-(-n >> level))
        last = np.minimum((nodes + 1) << level, n) - 1
        left, right = last[0::2], last[1::2]
        asked[0::2][: len(right)] -= rows[right]
        open_ = left < n - 1
        asked[0::2][open_] += rows[left[open_]]
        weight = own_weight(level)
        total += weight**2 * _square(asked)
        if level:
            asked = (1.0 - weight) * np.repeat(asked, 2, axis=0)[: -(-n >> (level - 1))]
    return total


def _full_tree(strategy: Tree, rows: Array) -> float:
    """Compute a^T X^-1 a from the leaves up. Node v adds a row of ones to C: X_v = diag(X_left, X_right) + 1 1^T.

    Let m and s be the sums over the children of 1^T X^-1 a and 1^T X^-1 1. Then
    a^T X_v^-1 a = (sum over the children) - m^2 / (1 + s), m_v = m / (1 + s) and s_v = s / (1 + s).
    """
    means, sums = rows, np.ones((strategy.steps, 1))
    total = _square(rows)
    for _ in range(strategy.height):
        means, sums = _add_pairs(means), _add_pairs(sums)
        total -= float((means**2 / (1.0 + sums)).sum())
        means, sums = means / (1.0 + sums), sums / (1.0 + sums)
    return total


def _add_pairs(values: Array) -> Array:
    """Sum the nodes of a level into their parents; nodes beyond the run are zero."""
    out = values[0::2].copy()
    out[: len(values) // 2] += values[1::2]
    return out


def _dense(strategy: Strategy, rows: Array) -> float:
    return _square(strategy.noising().T @ rows)


_METHODS: dict[type[Strategy], Callable[[Any, Array], float]] = {
    BLT: _blt,
    Banded: _banded,
    BandedInverse: _banded_inverse,
    Fourier: _fourier,
    Identity: _identity,
    Stamped: _stamped,
    Toeplitz: _toeplitz,
    Tree: _tree,
}
