"""The table of methods that compute the error, with one row for each class of strategies.

A is the workload matrix, C the strategy matrix, N its noising matrix (a left inverse), and z white noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._error import last_iterate
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import BLT, Banded, BandedInverse, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

Sums = Callable[[Array, int], tuple[float, float]]


@dataclass(frozen=True)
class ErrorMethods:
    """The functions that compute the error for one class of strategies.

    Args:
        variances: maps the strategy and a workload to the noise variance of each step, as in `per_step_variances`.
        last_iterate: maps the strategy and an array `rows` of shape (steps, count) to ||N^T rows||_F^2.
        sums: for a strategy with a Toeplitz C, returns a function of the first column of A^-1 and a number of steps n.
            That function returns sum_i w_i^2 and sum_i (n - i) w_i^2, where w is the first column of A C^-1, without
            storing one number per step. For any other C, `sums` returns None.
    """

    variances: Callable[[Any, Workload], Array]
    last_iterate: Callable[[Any, Array], float]
    sums: Callable[[Any], Sums | None] = lambda strategy: None


def per_step_variances(strategy: Strategy, workload: Workload) -> Array:
    """Return an array of shape (steps,) with the variance of each row of A N z, where z has standard deviation 1."""
    return _row(strategy).variances(strategy, workload)


def squared_norm(strategy: Strategy, rows: Array) -> float:
    """Return ||N^T rows||_F^2 for rows of shape (steps, count).

    >>> squared_norm(Toeplitz([1.0, 0.5], 2), np.array([[0.0], [1.0]]))
    1.25
    """
    return _row(strategy).last_iterate(strategy, rows)


def toeplitz_sums(strategy: Strategy) -> Sums | None:
    """Return the function that `ErrorMethods.sums` makes for this strategy, or None if C is not Toeplitz."""
    return _row(strategy).sums(strategy)


def _row(strategy: Strategy) -> ErrorMethods:
    return TABLE.get(type(strategy), UNKNOWN_STRATEGY)


def _dense(strategy: Strategy, workload: Workload) -> Array:
    from antiphase._kernels import filter_columns

    B = np.ascontiguousarray(strategy.noising()).copy()
    filter_columns(B, workload.inverse_bands(strategy.steps))
    return np.einsum("ij,ij->i", B, B)


def _banded(strategy: Any, workload: Workload) -> Array:
    from antiphase._kernels import autoregressive_variances

    columns = strategy.band_columns()
    if columns.shape[1] ** 2 > 4 * strategy.steps:
        return _dense(strategy, workload)
    return autoregressive_variances(columns, workload.inverse_bands(strategy.steps))


def _toeplitz(strategy: Toeplitz, workload: Workload) -> Array:
    from antiphase._error.toeplitz import response
    from antiphase._kernels import shifted_variances

    n, constant = strategy.steps, workload.toeplitz_inverse
    if constant is not None and not strategy.column_normalized:
        return np.cumsum(response(np.ones(1), strategy.coefficients, constant, n) ** 2)
    if strategy.bands**2 <= 4 * n:
        return _banded(strategy, workload)
    inverse = response(np.ones(1), strategy.coefficients, np.ones(1), n)
    return shifted_variances(inverse, strategy.column_scales(), workload.inverse_bands(n))


def _blt(strategy: BLT, workload: Workload) -> Array:
    from antiphase._kernels import buffer_response, buffer_variances

    n, constant = strategy.steps, workload.toeplitz_inverse
    if constant is not None:
        return np.cumsum(buffer_response(strategy.decay, strategy.scale, constant, n) ** 2)
    return buffer_variances(strategy.decay, strategy.scale, workload.inverse_bands(n))


def _banded_inverse(strategy: BandedInverse, workload: Workload) -> Array:
    from antiphase._error.toeplitz import response
    from antiphase._kernels import moving_sum_variances

    n, constant = strategy.steps, workload.toeplitz_inverse
    if constant is not None:
        return np.cumsum(response(strategy.coefficients, np.ones(1), constant, n) ** 2)
    return moving_sum_variances(strategy.coefficients, workload.inverse_bands(n))


def _tree(strategy: Tree, workload: Workload) -> Array:
    from antiphase._error.tree import full_tree_variances, online_tree_variances

    variances = online_tree_variances if strategy.decoder == "online" else full_tree_variances
    return variances(strategy, workload)


def _fourier(strategy: Fourier, workload: Workload) -> Array:
    from antiphase._error.fourier import fourier_variances

    return fourier_variances(strategy, workload)


def _stamped(strategy: Stamped, workload: Workload) -> Array:
    """Return the variances for a strategy that restarts for every block of steps.

    The noise of the blocks is independent, so their variances add up. Under a prefix sum, the noise that a block leaves
    in the model at its last step stays unchanged until the end of the run. For other workloads, the function computes
    how the noise of each block changes until the end of the run.
    """
    if isinstance(workload, PrefixSum):
        base = per_step_variances(strategy.strategy, workload)
        return (base + base[-1] * np.arange(strategy.repeats)[:, None]).ravel()
    if isinstance(strategy.strategy, Tree):
        from antiphase._error.tree import stamped_tree_variances

        return stamped_tree_variances(strategy.strategy, strategy.repeats, workload)
    from antiphase._kernels import filter_columns

    n, block = strategy.steps, strategy.strategy.steps
    inverse = workload.inverse_bands(n)
    noising = strategy.strategy.noising()
    out = np.zeros(n)
    for start in range(0, n, block):
        x = np.zeros((n - start, noising.shape[1]))
        x[:block] = noising
        filter_columns(x, inverse[start:])
        out[start:] += np.einsum("ij,ij->i", x, x)
    return out


def _stamped_last_iterate(strategy: Stamped, rows: Array) -> float:
    """Return ||N^T rows||_F^2 as a sum over blocks: N is block diagonal, and all its blocks are equal."""
    blocks = rows.reshape(strategy.repeats, strategy.strategy.steps, -1)
    return squared_norm(strategy.strategy, np.concatenate(list(blocks), axis=1))


def _filter_sums(numerator: Array, denominator: Array) -> Sums:
    from antiphase._error.toeplitz import response_sums

    return lambda inverse, steps: response_sums(numerator, denominator, inverse, steps)


def _toeplitz_sums(strategy: Toeplitz) -> Sums | None:
    return None if strategy.column_normalized else _filter_sums(np.ones(1), strategy.coefficients)


def _blt_sums(strategy: BLT) -> Sums:
    from antiphase._kernels import buffer_response_sums

    return lambda inverse, steps: buffer_response_sums(strategy.decay, strategy.scale, inverse, steps)


UNKNOWN_STRATEGY = ErrorMethods(_dense, last_iterate.dense)
TABLE: dict[type[Strategy], ErrorMethods] = {
    Identity: ErrorMethods(_banded, last_iterate.identity, lambda strategy: _filter_sums(np.ones(1), np.ones(1))),
    Banded: ErrorMethods(_banded, last_iterate.banded),
    Toeplitz: ErrorMethods(_toeplitz, last_iterate.toeplitz, _toeplitz_sums),
    BLT: ErrorMethods(_blt, last_iterate.blt, _blt_sums),
    BandedInverse: ErrorMethods(
        _banded_inverse, last_iterate.banded_inverse, lambda strategy: _filter_sums(strategy.coefficients, np.ones(1))
    ),
    Tree: ErrorMethods(_tree, last_iterate.tree),
    Fourier: ErrorMethods(_fourier, last_iterate.fourier),
    Stamped: ErrorMethods(_stamped, _stamped_last_iterate),
}
