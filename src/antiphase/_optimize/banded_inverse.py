"""Optimise a strategy C whose inverse C^-1 is a banded Toeplitz matrix."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._error import trajectory_weight
from antiphase._loss import loss
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.banded_error import objective_powers, power_mean
from antiphase._optimize.curvature_error import MAX_SOLVED_STEPS
from antiphase._optimize.lbfgs import ValueAndGradient, lbfgs_minimize
from antiphase._optimize.linear_algebra import inner
from antiphase._optimize.participation_limits import ParticipationLimits, check_bands, worst_case_limits
from antiphase._optimize.solution import SearchLimits, Solution
from antiphase._optimize.toeplitz import earliest_pattern_square
from antiphase._optimize.toeplitz_error import impulse_response, pull_back, squared_error_of_inverse
from antiphase._participation import Participation
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import BandedInverse

LogError = Callable[[Array], tuple[float, Array]]  # coefficients d of C^-1 -> log(error), and its gradient


def optimize_banded_inverse(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    *,
    bands: int | None = None,
) -> Solution:
    """Minimise sensitivity x error over the strategies C whose inverse is banded Toeplitz.

    The variables of the search are the coefficients d of C^-1. The error depends on A C^-1, which is linear in d. The
    sensitivity depends on the coefficients c of C, which are the coefficients of the power series 1 / d(x). One filter,
    run backwards in time, converts the gradient with respect to c into the gradient with respect to d.

    In the earliest participation pattern, an example takes part as early and as often as allowed. This is the worst
    pattern if c is non-negative and non-increasing. The first search minimises the loss under this pattern. Because c
    is not constrained, the true sensitivity of the result can be larger, and so its loss. In that case, a second search
    minimises an upper bound on the loss. To bound the sensitivity for any c, it applies the earliest pattern to the
    smallest non-increasing sequence that is at least |c|.

    The starting point has a closed form. The returned strategy has the smallest proved loss among the starting point
    and the results of both searches.

    Args:
        steps: number of steps, n.
        participation: the steps in which an example can take part.
        workload: the workload matrix, A.
        objective: the error to minimise: "rms" or "max" over the steps, or a `Curvatures` object, which averages the
            noise over directions of different curvature.
        limits: when to stop early.
        bands: number of coefficients of C^-1; by default the smaller of 32 and the number of steps.

    Reference: Kalinin, McKenna, Upadhyay and Lampert 2025.
    """
    owner = "optimize('banded-inverse')"
    allowed = worst_case_limits(owner, participation, steps)
    count = check_bands(owner, bands, steps, steps)
    start = BandedInverse.square_root(count, steps, workload if workload.toeplitz_inverse is not None else PrefixSum())
    errors = _errors(workload, objective, steps, count)
    best, found, converged = loss(start, workload, participation, objective), start, True
    for bounded in (False, True):
        d, value, converged = _search(start.coefficients, steps, allowed, errors, limits, bounded)
        strategy = BandedInverse(d, steps)
        proved = loss(strategy, workload, participation, objective)
        if proved < best:
            best, found = proved, strategy
        if proved <= value * (1.0 + 1e-9) or not converged:  # the search minimised the proved loss, or a limit ended it
            break
    return Solution(found, best, None, limits.count, limits.elapsed, converged)


def _search(
    d: Array, steps: int, allowed: ParticipationLimits, errors: list[LogError], limits: SearchLimits, bounded: bool
) -> tuple[Array, float, bool]:
    """Minimise the loss over the coefficients of C^-1, starting from `d`.

    The loss uses the sensitivity under the earliest pattern, or, if `bounded` is True, the upper bound on the
    sensitivity for any pattern. Returns the coefficients scaled to d_0 = 1, the loss that the search computed for them,
    and whether the search converged.
    """
    value, converged = math.inf, True
    for error in errors:
        end = lbfgs_minimize(_function(steps, allowed, error, bounded), d, limits)
        d, value, converged = end.point / end.point[0], math.exp(end.value), end.converged
    return d, value, converged


def _function(steps: int, allowed: ParticipationLimits, error: LogError, bounded: bool) -> ValueAndGradient:
    """Return a function from the coefficients d of C^-1 to log(loss), with `bounded` as in `_search`.

    The loss does not depend on the scale of d.
    """

    def function(d: Array, gradient: Array) -> float:
        c = impulse_response(d, np.ones(1), steps)
        if c is None:
            return math.inf
        m, source = _majorant(c) if bounded else (c, np.arange(len(c)))
        square, square_gradient = earliest_pattern_square(m, steps, allowed.separation, allowed.count)
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
    """Return m with m_i = max_{j >= i} |c_j|, and for each i the index j of this maximum.

    >>> _majorant(np.array([1.0, 0.25, -0.5]))
    (array([1. , 0.5, 0.5]), array([0, 2, 2]))
    """
    m = np.maximum.accumulate(np.abs(c)[::-1])[::-1]
    attained = np.where(np.abs(c) == m, np.arange(len(c)), len(c) - 1)
    return m, np.minimum.accumulate(attained[::-1])[::-1]


def _errors(workload: Workload, objective: Objective, steps: int, bands: int) -> list[LogError]:
    """Return functions from the coefficients d of C^-1 to log(error), to be minimised in turn.

    For "max" under a workload that is not Toeplitz, these are power means of the variances with increasing exponents.
    Otherwise there is only one function.
    """
    inverse = workload.toeplitz_inverse
    if isinstance(objective, Curvatures):
        return [_mixed(workload, objective, steps, bands)]
    if inverse is not None:
        return [_closed(inverse, steps, objective)]
    return [_recursive(workload.inverse_bands(steps), power, bands) for power in objective_powers(objective)]


def _closed(inverse: Array, steps: int, objective: Objective) -> LogError:
    """Return a function from d to log(error) under a Toeplitz workload."""
    return _logarithm(squared_error_of_inverse(inverse, steps, counted=steps if objective == "rms" else 1))


def _mixed(workload: Workload, objective: Curvatures, steps: int, bands: int) -> LogError:
    """Return a function from d to log sqrt(J), with the squared error J = d^T Q d of `Curvatures` for a fixed Q."""
    Q = np.zeros((bands, bands))
    if objective.averaged_steps(steps) > 1:
        Q += _shifted_products(objective.last_rows(workload, steps), bands)
    else:
        for share, A in zip(objective.shares, objective.workloads(workload), strict=True):
            Q += share * _quadratic_form(A, steps, objective.counted_steps(steps), bands)
    if objective.way is not None:
        Q += trajectory_weight(workload, objective, steps) * _quadratic_form(workload, steps, steps, bands)

    def square(d: Array) -> tuple[float, Array]:
        gradient = 2.0 * np.einsum("rs,s->r", Q, d)
        return 0.5 * inner(gradient, d), gradient

    return _logarithm(square)


def _shifted_products(rows: Array, bands: int) -> Array:
    """Return the matrix Q with d^T Q d = sum_i |D^T a_i|^2 for all d, where a_i are the columns of `rows`.

    Here D is the lower-triangular Toeplitz matrix with first column d.
    """
    n, count = rows.shape
    shifted = np.zeros((bands, n, count))
    for r in range(bands):
        shifted[r, : n - r] = rows[r:]
    flat = shifted.reshape(bands, -1)
    return flat @ flat.T


def _quadratic_form(workload: Workload, steps: int, counted: int, bands: int) -> Array:
    """Return the matrix Q such that d^T Q d is the mean noise variance of the last `counted` steps for all d.

    For long runs under a Toeplitz workload, Q is computed from the impulse response of the workload. The impulse
    response is truncated where it has become constant.
    """
    from antiphase._kernels import shifted_gram

    inverse = workload.toeplitz_inverse
    if inverse is not None and steps > MAX_SOLVED_STEPS:
        square = squared_error_of_inverse(inverse, steps, counted)
        return 0.5 * np.array([square(unit)[1] for unit in np.eye(bands)])
    weights = np.where(np.arange(steps) >= steps - counted, 1.0 / counted, 0.0)
    return shifted_gram(workload.inverse_bands(steps), weights, bands)


def _logarithm(square: Callable[[Array], tuple[float, Array]]) -> LogError:
    """Return a function from d to log sqrt(square(d)) and its gradient."""

    def error(d: Array) -> tuple[float, Array]:
        value, gradient = square(d)
        return 0.5 * math.log(value), 0.5 * gradient / value

    return error


def _recursive(inverse: Array, power: float, bands: int) -> LogError:
    """Return a function from d to log(error) under any workload, given the bands of A^-1.

    The variance of step i is d^T Q_i d for a fixed matrix Q_i, so the gradient of a weighted sum of the variances is
    2 Q d, where Q is the weighted sum of the Q_i.
    """
    from antiphase._kernels import moving_sum_variances, shifted_gram

    def error(d: Array) -> tuple[float, Array]:
        value, weights = power_mean(moving_sum_variances(d, inverse), power)
        return value, 2.0 * shifted_gram(inverse, weights, bands) @ d

    return error
