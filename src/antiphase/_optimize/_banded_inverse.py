"""The best strategy whose inverse is banded Toeplitz."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._loss import Objective, loss
from antiphase._optimize._descent import Function, descend
from antiphase._optimize._earliest import earliest_square
from antiphase._optimize._objective import POWERS, power_mean
from antiphase._optimize._response import inverse_response, moving_square, pull_back
from antiphase._optimize._schema import Schema, check_bands, schema
from antiphase._optimize._solution import Limits, Solution
from antiphase._participation import Participation
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import BandedInverse

PROVED = 1e-9
LogError = Callable[[Array], tuple[float, Array]]


def optimize_banded_inverse(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    *,
    bands: int | None = None,
) -> Solution:
    """Minimise sensitivity x error over the coefficients of a banded Toeplitz C^-1.

    B = A C^-1 is linear in the coefficients d, and the coefficients c of C are the series 1 / d(x), so the gradient
    of the sensitivity is one filter backwards in time. The search takes the earliest pattern for the sensitivity,
    which is the worst where c is non-negative and non-increasing. Where the result has no proof of that, a second
    search takes the earliest pattern for the smallest non-increasing sequence above |c|, an upper bound for any c.
    Of both results and the closed form, the one with the smallest proved loss is returned.

    Args:
        steps: n.
        participation: how one example meets the steps.
        workload: A.
        objective: "rms" or "max".
        limits: when to stop early.
        bands: number of coefficients of C^-1; by default 32, or fewer steps.

    Reference: Kalinin, McKenna, Upadhyay and Lampert 2025.
    """
    owner = "optimize('banded-inverse')"
    promise = schema(owner, participation, steps)
    count = check_bands(owner, bands, steps, steps)
    start = BandedInverse.square_root(count, steps, workload if workload.toeplitz_inverse is not None else PrefixSum())
    errors = _errors(workload, objective, steps, count)
    best, found, converged = loss(start, workload, participation, objective), start, True
    for bounded in (False, True):
        d, value, converged = _search(start.coefficients, steps, promise, errors, limits, bounded)
        strategy = BandedInverse(d, steps)
        proved = loss(strategy, workload, participation, objective)
        if proved < best:
            best, found = proved, strategy
        if proved <= value * (1.0 + PROVED) or not converged:
            break
    return Solution(found, best, None, limits.count, limits.elapsed, converged)


def _search(
    d: Array, steps: int, promise: Schema, errors: list[LogError], limits: Limits, bounded: bool
) -> tuple[Array, float, bool]:
    """Coefficients with the first 1, the value that the search gives them, and whether no limit stopped it."""
    value, converged = math.inf, True
    for error in errors:
        end = descend(_function(steps, promise, error, bounded), d, limits)
        d, value, converged = end.point / end.point[0], math.exp(end.value), end.converged
    return d, value, converged


def _function(steps: int, promise: Schema, error: LogError, bounded: bool) -> Function:
    """log(loss) as a function of d, at any scale."""

    def function(d: Array, gradient: Array) -> float:
        c = inverse_response(d, np.ones(1), steps)
        if c is None:
            return math.inf
        m, source = _majorant(c) if bounded else (c, np.arange(len(c)))
        square, square_gradient = earliest_square(m, steps, promise.separation, promise.count)
        value, error_gradient = error(d)
        if not (math.isfinite(square) and math.isfinite(value)):
            return math.inf
        c_gradient = np.zeros_like(c)
        np.add.at(c_gradient, source, square_gradient)
        if bounded:
            c_gradient *= np.sign(c)
        gradient[:] = error_gradient + 0.5 * pull_back(d, c, c_gradient) / square
        return value + 0.5 * math.log(square)

    return function


def _majorant(c: Array) -> tuple[Array, NDArray[np.int64]]:
    """m_i = max over j >= i of |c_j|, and the j that attains it.

    >>> _majorant(np.array([1.0, 0.25, -0.5]))
    (array([1. , 0.5, 0.5]), array([0, 2, 2]))
    """
    m = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
    attained = np.where(np.abs(c) == m, np.arange(len(c)), len(c) - 1)
    return m, np.minimum.accumulate(attained[::-1])[::-1]


def _errors(workload: Workload, objective: Objective, steps: int, bands: int) -> list[LogError]:
    """log(error) as a function of d: one, or a sequence that tends to the objective."""
    inverse = workload.toeplitz_inverse
    if inverse is not None:
        return [_closed(inverse, steps, objective)]
    return [_recursive(workload.inverse_bands(steps), power, bands) for power in POWERS[objective]]


def _closed(inverse: Array, steps: int, objective: Objective) -> LogError:
    square = moving_square(inverse, steps, weighted=objective == "rms")

    def error(d: Array) -> tuple[float, Array]:
        value, gradient = square(d)
        return 0.5 * math.log(value), 0.5 * gradient / value

    return error


def _recursive(inverse: Array, power: float, bands: int) -> LogError:
    """The variances are d^T Q_i d, so that the gradient of their weighted sum is 2 Q d, Q for those weights."""
    from antiphase._kernels.covariance import moving_sum_variances
    from antiphase._kernels.workload_gram import shifted_gram

    def error(d: Array) -> tuple[float, Array]:
        value, weights = power_mean(moving_sum_variances(d, inverse), power)
        return value, 2.0 * shifted_gram(inverse, weights, bands) @ d

    return error
