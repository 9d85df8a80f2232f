"""Error of a strategy: the variance of the noise in the model, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._workload import Workload
from antiphase.strategies import BLT, Banded, BandedInverse, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree


@dataclass(frozen=True)
class ErrorProfile:
    """Noise in A x for sigma = 1: root mean square, maximum, and variance of each step.

    Args:
        rms: root of the mean variance, ||A N||_F / sqrt(n).
        max: root of the largest variance, the largest row norm of A N.
        compute: computes the variances when `per_step` is first read.
    """

    rms: float
    max: float
    compute: Callable[[], Array]

    @cached_property
    def per_step(self) -> Array:
        """The variance of each step for sigma = 1."""
        return self.compute()


def error(strategy: Strategy, workload: Workload) -> ErrorProfile:
    """Return the error of a strategy on a workload: the row norms of B = A N.

    Exact, by a covariance recursion in time linear in the steps for Identity, Banded, Toeplitz, BLT and
    BandedInverse, by the structure of Tree and Fourier, and by dense algebra for Dense.

    Args:
        strategy: strategy matrix, C, with its left inverse N.
        workload: workload matrix, A.

    Reference: McKenna 2024 (scaling), section 3, for the objective.

    >>> from antiphase import PrefixSum, strategies
    >>> error(strategies.Identity(4), PrefixSum()).per_step.tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    workload.check_steps(strategy.steps)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = _closed_sums(strategy, workload)
        if sums is None:
            variances = per_step_variances(strategy, workload)
            return _checked(float(variances.mean()), float(variances.max()), lambda: variances)
    total, weighted = sums
    return _checked(weighted / strategy.steps, total, lambda: per_step_variances(strategy, workload))


def _checked(mean: float, largest: float, compute: Callable[[], Array]) -> ErrorProfile:
    if not math.isfinite(mean) or not math.isfinite(largest):
        raise InvalidArgument(
            "The error of this strategy is too large for floating point: its inverse grows from step to step.",
            hint="choose coefficients that decay, such as those of Toeplitz.square_root",
        )
    return ErrorProfile(math.sqrt(mean), math.sqrt(largest), compute)


def per_step_variances(strategy: Strategy, workload: Workload) -> Array:
    """Return the variance of each step of A N z for sigma = 1."""
    return _METHODS.get(type(strategy), _dense)(strategy, workload)


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
    from antiphase._error.stamped import stamped_variances

    return stamped_variances(strategy, workload, per_step_variances)


def _closed_sums(strategy: Strategy, workload: Workload) -> tuple[float, float] | None:
    """Return sum_i w_i^2 and sum_i (n - i) w_i^2 if A and C are both Toeplitz, without arrays of length n."""
    from antiphase._error.toeplitz import response_sums

    constant = workload.toeplitz_inverse
    if constant is None:
        return None
    match strategy:
        case Toeplitz() if not strategy.column_normalized:
            return response_sums(np.ones(1), strategy.coefficients, constant, strategy.steps)
        case BandedInverse():
            return response_sums(strategy.coefficients, np.ones(1), constant, strategy.steps)
        case Identity():
            return response_sums(np.ones(1), np.ones(1), constant, strategy.steps)
        case BLT():
            from antiphase._kernels import buffer_response_sums

            return buffer_response_sums(strategy.decay, strategy.scale, constant, strategy.steps)
    return None


def _dense(strategy: Strategy, workload: Workload) -> Array:
    from antiphase._kernels import filter_columns

    B = np.ascontiguousarray(strategy.noising()).copy()
    filter_columns(B, workload.inverse_bands(strategy.steps))
    return np.einsum("ij,ij->i", B, B)


_METHODS: dict[type[Strategy], Callable[[Any, Workload], Array]] = {
    BLT: _blt,
    Banded: _banded,
    BandedInverse: _banded_inverse,
    Fourier: _fourier,
    Identity: _banded,
    Stamped: _stamped,
    Toeplitz: _toeplitz,
    Tree: _tree,
}
