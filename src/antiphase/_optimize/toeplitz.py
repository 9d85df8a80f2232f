"""Optimise the coefficients of a banded Toeplitz strategy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._loss import Objective, loss
from antiphase._optimize.banded_error import objective_powers
from antiphase._optimize.curvature_error import (
    LogBandedError,
    SquareAndGradient,
    banded_error,
    toeplitz_squared_error,
)
from antiphase._optimize.lbfgs import ValueAndGradient, lbfgs_minimize
from antiphase._optimize.participation_limits import ParticipationLimits, check_bands, worst_case_limits
from antiphase._optimize.solution import SearchLimits, Solution
from antiphase._participation import Participation
from antiphase._sensitivity import earliest_blocks
from antiphase._workload import Workload
from antiphase.strategies import Toeplitz

# coefficients -> squared sensitivity, and its gradient
SquaredSensitivity = Callable[[Array], tuple[float, Array]]


def optimize_toeplitz(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    *,
    bands: int | None = None,
    column_normalized: bool = False,
) -> Solution:
    """Minimise sensitivity x error over the coefficients of a banded Toeplitz strategy C.

    The search computes the sensitivity for the earliest participation pattern, in which all participations are as early
    as possible. For shuffled epochs, it uses a pattern with pairs of participations in adjacent steps instead (see
    `adjacent_pattern_square`). If the number of bands exceeds the separation, and for shuffled epochs, the coefficients
    are kept non-negative and non-increasing. For such coefficients, the worst pattern is known.

    Under a Toeplitz workload, two filters compute the error and its gradient. The filters stop where their output has
    become constant, so n = 10^9 takes no longer than n = 10^5. Under other workloads, and with normalised columns, a
    covariance recursion computes the error and its gradient.

    Args:
        steps: number of steps, n.
        participation: the steps in which an example can take part.
        workload: the workload matrix, A.
        objective: the error to minimise: "rms" or "max" over the steps, or a `Curvatures` object, which averages the
            noise over directions of different curvature.
        limits: when to stop early.
        bands: largest number of coefficients, up to `steps`; by default the smallest of 32, the number of steps and the
            separation. Trailing zeros are removed.
        column_normalized: True to scale every column of C to norm 1. This requires bands <= separation.

    Reference: McKenna 2024 (scaling), section 3.2; starting point from Fichtenberger, Henzinger and Upadhyay 2023.
    """
    owner = "optimize('toeplitz')"
    allowed = worst_case_limits(owner, participation, steps, allow_shuffled=True)
    count = check_bands(owner, bands, steps, allowed.separation)
    if count > allowed.separation and (column_normalized or allowed.shuffled):
        raise InvalidArgument(
            f"{owner} with column_normalized=True or shuffled epochs requires at most {allowed.separation} bands (the "
            f"separation, or the number of steps per epoch). Got {count}.",
            hint=f"use bands={allowed.separation}, or column_normalized=False with FixedEpochs or MinSeparation",
        )
    if column_normalized and allowed.shuffled:
        raise InvalidArgument(
            f"{owner} does not support column_normalized=True with shuffled epochs, because an example can take part "
            "in adjacent steps, whose columns are not orthogonal.",
            hint="use column_normalized=False",
        )
    c, converged = toeplitz_coefficients(steps, allowed, workload, objective, limits, count, column_normalized)
    strategy = Toeplitz(c, steps, column_normalized)
    value = loss(strategy, workload, participation, objective)
    return Solution(strategy, value, None, limits.count, limits.elapsed, converged)


def toeplitz_coefficients(
    steps: int,
    allowed: ParticipationLimits,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    bands: int,
    column_normalized: bool = False,
) -> tuple[Array, bool]:
    """Return the best coefficients, scaled to norm 1, and whether the search converged."""
    free = 1 if allowed.shuffled else min(bands, allowed.separation)
    c, converged = _unit(Toeplitz.square_root(steps, free).coefficients), True
    for function in _functions(steps, allowed, workload, objective, free, column_normalized):
        end = lbfgs_minimize(function, c, limits)
        c, converged = _unit(end.point), end.converged
    if bands == free or not converged:
        return c, converged
    longer, functions = c, _functions(steps, allowed, workload, objective, bands, False)
    for function in functions:
        longer, converged = _minimize_decreasing(function, longer, bands, limits)
    unused = np.empty(bands)
    padded = np.pad(c, (0, bands - free))
    best = longer if functions[-1](longer, unused) < functions[-1](padded, unused) else padded
    return _unit(np.trim_zeros(best, "b")), converged


def _functions(
    steps: int,
    allowed: ParticipationLimits,
    workload: Workload,
    objective: Objective,
    bands: int,
    column_normalized: bool,
) -> list[ValueAndGradient]:
    """Return functions from the coefficients of C to log(loss), to be minimised in turn.

    If the objective is "max" and the error needs a covariance recursion, the functions compute the error from power
    means of the variances, with increasing exponents. Otherwise there is only one function.
    """
    if allowed.shuffled:
        square: SquaredSensitivity = partial(adjacent_pattern_square, count=allowed.count)
    else:
        square = partial(earliest_pattern_square, steps=steps, separation=allowed.separation, count=allowed.count)
    squared_error = None if column_normalized else toeplitz_squared_error(workload, objective, steps)
    if squared_error is not None:
        return [_closed(square, squared_error)]
    error, powers = banded_error(workload, objective, steps, bands), objective_powers(objective)
    if column_normalized:
        return [_normalized(steps, bands, allowed.count, error, power) for power in powers]
    return [_recursive(steps, bands, square, error, power) for power in powers]


def earliest_pattern_square(coefficients: Array, steps: int, separation: int, count: int) -> tuple[float, Array]:
    """Return |C u|^2 for the earliest participation pattern u, and its gradient with respect to the coefficients.

    In the earliest pattern, the example takes part as early as the separation allows. The entries of u are 1 in these
    steps and 0 elsewhere.

    **Guarantee**: this is the squared sensitivity in two cases. In the first case, there are at most `separation`
    coefficients. The columns of C for the steps of a pattern are then orthogonal. The earliest columns have the largest
    norms, because columns near the end of the run are truncated. In the second case, the coefficients are non-negative
    and non-increasing.

    Reference: Kalinin and Lampert 2024, Thm 2; Choquette-Choo et al. 2023 (amplified banded), Thm 2.

    >>> earliest_pattern_square(np.array([1.0, 0.5]), steps=4, separation=3, count=2)[0]
    2.25
    """
    width, blocks = min(separation, len(coefficients)), -(-len(coefficients) // separation)
    found = earliest_blocks(coefficients, steps, separation, count)
    weighted = 2.0 * found.times[:, None] * found.values
    back = np.zeros((blocks + 1, width))
    np.add.at(back, found.high, weighted)
    np.subtract.at(back, found.low, weighted)
    gradient = back[:0:-1].cumsum(axis=0)[::-1].reshape(-1)[: len(coefficients)]
    return float(0.5 * np.vdot(weighted, found.values)), gradient


def adjacent_pattern_square(coefficients: Array, count: int) -> tuple[float, Array]:
    """Return |C u|^2 for a pattern u of shuffled epochs, and its gradient with respect to the coefficients.

    The pattern pairs epochs 1 and 2, epochs 3 and 4, and so on. In each pair, the example takes part in the last step
    of the first epoch and in the first step of the second. |C u|^2 is k rho_0 + 2 floor(k / 2) rho_1 for k = `count`,
    where rho is the autocorrelation of the coefficients. There must be at most as many coefficients as steps per epoch.
    The result only guides the search. The reported loss is computed for the worst pattern.

    >>> adjacent_pattern_square(np.array([1.0, 0.5]), count=2)[0]
    3.5
    """
    c, pairs = coefficients, 2.0 * (count // 2)
    neighbours = np.pad(c[1:], (0, 1)) + np.pad(c[:-1], (1, 0))
    gradient = 2.0 * count * c + pairs * neighbours
    return float(0.5 * np.einsum("i,i", c, gradient)), gradient


def _closed(square: SquaredSensitivity, squared_error: SquareAndGradient) -> ValueAndGradient:
    """Return log(loss) as a function of the coefficients.

    `square` computes the squared sensitivity, and `squared_error` the squared error.
    """

    def function(c: Array, gradient: Array) -> float:
        error, error_gradient = squared_error(c)
        if not math.isfinite(error):
            return math.inf
        size, size_gradient = square(c)
        gradient[:] = 0.5 * (error_gradient / error + size_gradient / size)
        return 0.5 * (math.log(error) + math.log(size))

    return function


def _recursive(
    steps: int, bands: int, square: SquaredSensitivity, error: LogBandedError, power: float
) -> ValueAndGradient:
    """Return log(loss) as a function of the coefficients under any workload, by the covariance recursion in `error`."""
    inside = _inside(steps, bands)
    columns_gradient = np.empty(inside.shape)

    def function(c: Array, gradient: Array) -> float:
        value = error(inside * c, power, columns_gradient)
        size, size_gradient = square(c)
        gradient[:] = columns_gradient.sum(axis=0) + 0.5 * size_gradient / size
        return value + 0.5 * math.log(size)

    return function


def _normalized(steps: int, bands: int, count: int, error: LogBandedError, power: float) -> ValueAndGradient:
    """Return log(loss) as a function of the coefficients, if every column is scaled to norm 1.

    The sensitivity is then sqrt(k) for k = `count` participations.
    """
    inside = _inside(steps, bands)
    columns_gradient = np.empty(inside.shape)

    def function(c: Array, gradient: Array) -> float:
        columns = inside * c
        norms = np.sqrt(np.einsum("jr,jr->j", columns, columns))[:, None]
        columns /= norms
        value = error(columns, power, columns_gradient)
        along = np.einsum("jr,jr->j", columns, columns_gradient)[:, None]
        gradient[:] = ((columns_gradient - along * columns) / norms).sum(axis=0)
        return value + 0.5 * math.log(count)

    return function


def _inside(steps: int, bands: int) -> Array:
    """Return a matrix with entry [j, r] = 1 if C[j + r, j] lies within C (j + r < steps), and 0 otherwise."""
    j, r = np.ogrid[:steps, :bands]
    return (j + r < steps).astype(np.float64)


def _unit(c: Array) -> Array:
    return c / math.sqrt(float(np.einsum("i,i", c, c)))


def _minimize_decreasing(function: ValueAndGradient, c: Array, bands: int, limits: SearchLimits) -> tuple[Array, bool]:
    """Minimise `function` over non-negative, non-increasing coefficients, starting from `c`.

    Returns the best coefficients and whether the search converged. The variables are the differences
    c_r - c_{r+1} >= 0. All roots of a polynomial with such coefficients lie outside the open unit disc
    (Enestrom-Kakeya theorem). So the entries of C^-1 do not grow exponentially, and the value of the function is
    always finite.
    """
    from scipy.optimize import minimize

    def of_differences(x: Array) -> tuple[float, Array]:
        gradient = np.empty_like(x)
        value = function(np.cumsum(x[::-1])[::-1], gradient)
        return value, np.cumsum(gradient)

    def report(intermediate_result: object) -> None:
        if limits.tick(math.exp(intermediate_result.fun)):  # type: ignore[attr-defined]
            raise StopIteration

    decreasing = np.minimum.accumulate(np.maximum(c, 0.0))
    found = minimize(
        of_differences,
        -np.diff(np.pad(decreasing, (0, bands - len(c))), append=0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * bands,
        callback=report,
        options={"maxiter": 10_000, "maxfun": 20_000, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-10},
    )
    return np.cumsum(found.x[::-1])[::-1], not limits.reached
