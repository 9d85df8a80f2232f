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
from antiphase._objective import Curvatures, Objective, resolved
from antiphase._workload import Workload
from antiphase.strategies import BLT, Banded, BandedInverse, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree


@dataclass(frozen=True)
class ErrorProfile:
    """Noise in A x for sigma = 1: the error under an objective, and the variance of each step.

    Args:
        value: the error under the objective.
        compute: computes the variances when `per_step` is first read; for several curvatures, their weighted mean.
        known: rms and max, if they are known without computing the variances.
    """

    value: float
    compute: Callable[[], Array]
    known: tuple[float, float] | None = None

    @cached_property
    def per_step(self) -> Array:
        """The variance of each step for sigma = 1."""
        return self.compute()

    @property
    def rms(self) -> float:
        """Root of the mean variance, ||A N||_F / sqrt(n)."""
        return math.sqrt(float(self.per_step.mean())) if self.known is None else self.known[0]

    @property
    def max(self) -> float:
        """Root of the largest variance, the largest row norm of A N."""
        return math.sqrt(float(self.per_step.max())) if self.known is None else self.known[1]


def error(strategy: Strategy, workload: Workload, objective: Objective = "rms") -> ErrorProfile:
    """Return the error of a strategy on a workload: the row norms of B = A N.

    The result is exact. It comes from a covariance recursion, in time linear in the number of steps, for Identity,
    Banded, Toeplitz, BLT and BandedInverse, from the structure of Tree and Fourier, and from dense algebra for Dense.
    The error of the last iterate (`Curvatures`) needs only the last row of A.

    Args:
        strategy: strategy matrix, C, with its left inverse N.
        workload: workload matrix, A.
        objective: which error `value` is: "rms" or "max" over the steps, the error in directions of several
            `Curvatures`, or "training" for the curvatures that the planner assumes.

    Reference: McKenna 2024 (scaling), section 3, for the objective.

    >>> from antiphase import Curvatures, PrefixSum, strategies
    >>> error(strategies.Identity(4), PrefixSum()).per_step.tolist()
    [1.0, 2.0, 3.0, 4.0]
    >>> error(strategies.Identity(4), PrefixSum(), Curvatures([0.0])).value
    2.0
    """
    objective = resolved("error", objective)
    workload.check_steps(strategy.steps)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(objective, Curvatures):
            mixed = squared_error(strategy, workload, objective)
            return ErrorProfile(_root(mixed), lambda: _mean_variances(strategy, workload, objective))
        sums = _closed_sums(strategy, workload)
        if sums is None:
            variances = per_step_variances(strategy, workload)
            rms, most = _root(float(variances.mean())), _root(float(variances.max()))
            return ErrorProfile(rms if objective == "rms" else most, lambda: variances, (rms, most))
    total, weighted = sums
    rms, most = _root(weighted / strategy.steps), _root(total)
    value = rms if objective == "rms" else most
    return ErrorProfile(value, lambda: per_step_variances(strategy, workload), (rms, most))


def _root(square: float) -> float:
    if not math.isfinite(square):
        raise InvalidArgument(
            "The error of this strategy is too large for floating point: its inverse grows from step to step.",
            hint="choose coefficients that decay, such as those of Toeplitz.square_root",
        )
    return math.sqrt(square)


def squared_error(strategy: Strategy, workload: Workload, objective: Curvatures) -> float:
    """Return J(C), the squared error for several curvatures.

    For each curvature, take the mean variance over the steps that count. J is the weighted mean of these numbers, plus
    the trajectory term if the objective has one.
    """
    from antiphase._error.last_iterate import last_iterate_variance

    if objective.way is not None:
        weight = trajectory_weight(workload, objective, strategy.steps)
        at_end = squared_error(strategy, workload, objective.destination)
        return at_end + weight * squared_error(strategy, workload, objective.way)
    n = strategy.steps
    counted, workloads = objective.counted_steps(n), objective.workloads(workload)
    if counted == 1 and not (_is_toeplitz(strategy) and workloads[0].toeplitz_inverse is not None):
        return last_iterate_variance(strategy, workload, objective)
    values = [_mean_variance(strategy, A, counted) for A in workloads]
    return math.fsum(share * value for share, value in zip(objective.shares, values, strict=True))


def trajectory_weight(workload: Workload, objective: Curvatures, steps: int) -> float:
    """Return the weight of the second term of J: for independent noise, it becomes `trajectory` times the first."""
    if objective.way is None:
        return 0.0
    plain = Identity(steps)
    at_end = squared_error(plain, workload, objective.destination)
    return objective.trajectory * at_end / squared_error(plain, workload, objective.way)


def _mean_variance(strategy: Strategy, workload: Workload, counted: int) -> float:
    """Return the mean variance of the last `counted` steps.

    If W(n) is the sum of the variances of the first n steps, the sum over the last m is W(n) - W(n - m).
    """
    sums = _closed_sums(strategy, workload)
    if sums is None:
        return float(per_step_variances(strategy, workload)[-counted:].mean())
    total, weighted = sums
    if counted == 1:
        return total
    if counted == strategy.steps:
        return weighted / counted
    before = _closed_sums(strategy, workload, strategy.steps - counted)
    assert before is not None
    return (weighted - before[1]) / counted


def _mean_variances(strategy: Strategy, workload: Workload, objective: Curvatures) -> Array:
    """Return the variance of each step, averaged over the curvatures with their weights."""
    total = np.zeros(strategy.steps)
    for share, A in zip(objective.shares, objective.workloads(workload), strict=True):
        total += share * per_step_variances(strategy, A)
    return total


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


def _is_toeplitz(strategy: Strategy) -> bool:
    normalized = isinstance(strategy, Toeplitz) and strategy.column_normalized
    return isinstance(strategy, (Toeplitz, BandedInverse, Identity, BLT)) and not normalized


def _closed_sums(strategy: Strategy, workload: Workload, steps: int | None = None) -> tuple[float, float] | None:
    """Return sum_i w_i^2 and sum_i (n - i) w_i^2 if A and C are both Toeplitz, without arrays of length n.

    n is `steps`, by default the number of steps of the strategy.
    """
    from antiphase._error.toeplitz import response_sums

    constant, n = workload.toeplitz_inverse, strategy.steps if steps is None else steps
    if constant is None or not _is_toeplitz(strategy):
        return None
    match strategy:
        case Toeplitz():
            return response_sums(np.ones(1), strategy.coefficients, constant, n)
        case BandedInverse():
            return response_sums(strategy.coefficients, np.ones(1), constant, n)
        case BLT():
            from antiphase._kernels import buffer_response_sums

            return buffer_response_sums(strategy.decay, strategy.scale, constant, n)
    return response_sums(np.ones(1), np.ones(1), constant, n)


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
