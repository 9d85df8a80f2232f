"""The best banded Toeplitz strategy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._loss import Objective, loss
from antiphase._optimize._descent import Function, descend
from antiphase._optimize._earliest import adjacent_square, earliest_square
from antiphase._optimize._objective import POWERS, BandedError
from antiphase._optimize._response import response_square
from antiphase._optimize._schema import Schema, check_bands, schema
from antiphase._optimize._solution import Limits, Solution
from antiphase._participation import Participation
from antiphase._workload import Workload
from antiphase.strategies import Toeplitz

Square = Callable[[Array], tuple[float, Array]]  # squared sensitivity of coefficients, and its gradient


def optimize_toeplitz(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    *,
    bands: int | None = None,
    column_normalized: bool = False,
) -> Solution:
    """Minimise sensitivity x error over the coefficients of a banded Toeplitz C.

    The sensitivity is that of the earliest pattern. With more bands than the separation, and for shuffled epochs, the
    coefficients are kept non-negative and non-increasing, so that the worst pattern is known. Under a Toeplitz
    workload error and gradient are two filters and cost nothing beyond the step where the response has become
    constant, so n = 10^9 is no harder than n = 10^5; under another workload, or with columns normalised, they follow
    from the covariance recursion.

    Args:
        steps: n.
        participation: how one example meets the steps.
        workload: A.
        objective: "rms" or "max".
        limits: when to stop early.
        bands: most coefficients, up to `steps`; by default the smallest of 32, steps and separation. Trailing zeros
            are cut off.
        column_normalized: scale every column of C to norm 1; needs bands <= separation.

    Reference: McKenna 2024 (scaling), section 3.2; started from Fichtenberger, Henzinger and Upadhyay 2023.
    """
    owner = "optimize('toeplitz')"
    promise = schema(owner, participation, steps, allow_shuffled=True)
    count = check_bands(owner, bands, steps, promise.separation)
    if count > promise.separation and (column_normalized or promise.shuffled):
        raise InvalidArgument(
            f"{owner} needs bands <= separation (steps per epoch) here. Got {count} bands, {promise.separation} steps.",
            hint=f"use bands={promise.separation}, or column_normalized=False under a fixed separation",
        )
    if column_normalized and promise.shuffled:
        raise InvalidArgument(
            f"{owner} has no column_normalized for shuffled epochs, whose adjacent columns are not orthogonal.",
            hint="use column_normalized=False",
        )
    c, converged = toeplitz_coefficients(steps, promise, workload, objective, limits, count, column_normalized)
    strategy = Toeplitz(c, steps, column_normalized)
    value = loss(strategy, workload, participation, objective)
    return Solution(strategy, value, None, limits.count, limits.elapsed, converged)


def toeplitz_coefficients(
    steps: int,
    promise: Schema,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    bands: int,
    column_normalized: bool = False,
) -> tuple[Array, bool]:
    """The best coefficients, of norm 1, and whether no limit stopped the search."""
    free = 1 if promise.shuffled else min(bands, promise.separation)
    c, converged = _unit(Toeplitz.square_root(steps, free).coefficients), True
    for function in _functions(steps, promise, workload, objective, free, column_normalized):
        end = descend(function, c, limits)
        c, converged = _unit(end.point), end.converged
    if bands == free or not converged:
        return c, converged
    longer, functions = c, _functions(steps, promise, workload, objective, bands, False)
    for function in functions:
        longer, converged = _descend_decreasing(function, longer, bands, limits)
    unused = np.empty(bands)
    padded = np.pad(c, (0, bands - free))
    best = longer if functions[-1](longer, unused) < functions[-1](padded, unused) else padded
    return _unit(np.trim_zeros(best, "b")), converged


def _functions(
    steps: int, promise: Schema, workload: Workload, objective: Objective, bands: int, column_normalized: bool
) -> list[Function]:
    """log(loss) as a function of the coefficients: one, or a sequence that tends to the objective."""
    if promise.shuffled:
        square: Square = partial(adjacent_square, count=promise.count)
    else:
        square = partial(earliest_square, steps=steps, separation=promise.separation, count=promise.count)
    inverse = workload.toeplitz_inverse
    if inverse is not None and not column_normalized:
        return [_closed(steps, square, inverse, objective)]
    error = BandedError(workload, steps, bands)
    if column_normalized:
        return [_normalized(steps, bands, promise.count, error, power) for power in POWERS[objective]]
    return [_recursive(steps, bands, square, error, power) for power in POWERS[objective]]


def _closed(steps: int, square: Square, inverse: Array, objective: Objective) -> Function:
    def function(c: Array, gradient: Array) -> float:
        error, error_gradient = response_square(c, inverse, steps, weighted=objective == "rms")
        if not math.isfinite(error):
            return math.inf
        size, size_gradient = square(c)
        gradient[:] = 0.5 * (error_gradient / error + size_gradient / size)
        return 0.5 * (math.log(error) + math.log(size))

    return function


def _recursive(steps: int, bands: int, square: Square, error: BandedError, power: float) -> Function:
    inside = _inside(steps, bands)
    columns_gradient = np.empty(inside.shape)

    def function(c: Array, gradient: Array) -> float:
        value = error(inside * c, power, columns_gradient)
        size, size_gradient = square(c)
        gradient[:] = columns_gradient.sum(axis=0) + 0.5 * size_gradient / size
        return value + 0.5 * math.log(size)

    return function


def _normalized(steps: int, bands: int, count: int, error: BandedError, power: float) -> Function:
    """Every column of norm 1, so that the sensitivity is sqrt(k)."""
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
    """1 where entry r of column j lies within C, else 0."""
    j, r = np.ogrid[:steps, :bands]
    return (j + r < steps).astype(np.float64)


def _unit(c: Array) -> Array:
    return c / math.sqrt(float(np.einsum("i,i", c, c)))


def _descend_decreasing(function: Function, c: Array, bands: int, limits: Limits) -> tuple[Array, bool]:
    """Over the differences c_r - c_{r+1} >= 0, so that every point is non-negative and non-increasing.

    Such a C has all roots of c(x) outside the open unit disc (Enestrom, Kakeya), so that the value is finite.
    """
    from scipy.optimize import minimize

    def differences(x: Array) -> tuple[float, Array]:
        gradient = np.empty_like(x)
        value = function(np.cumsum(x[::-1])[::-1], gradient)
        return value, np.cumsum(gradient)

    def tell(intermediate_result: object) -> None:
        if limits.tick(math.exp(intermediate_result.fun)):  # type: ignore[attr-defined]
            raise StopIteration

    decreasing = np.minimum.accumulate(np.maximum(c, 0.0))
    found = minimize(
        differences,
        -np.diff(np.pad(decreasing, (0, bands - len(c))), append=0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * bands,
        callback=tell,
        options={"maxiter": 10_000, "maxfun": 20_000, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-10},
    )
    return np.cumsum(found.x[::-1])[::-1], not limits.reached
