"""Squared error J of the objective `Curvatures`, with its gradient, for Toeplitz and banded strategies.

`Curvatures` averages the noise over directions in parameter space. Direction i has a curvature h_i, which determines
how fast SGD damps old noise in this direction, and a weight p_i. Let A_i be the workload matrix for curvature h_i
(`Workload.with_curvature`). The argument `workload` is always the workload for curvature 0.

If only the last iterate counts, J depends only on the rows a_i, where a_i is the last row of sqrt(p_i) A_i. (If the
model is the mean of the last iterates, a_i is the mean of the last rows instead.) For a strategy C,

    J = sum_i |y_i|^2,    y_i = C^-T a_i,    dJ / dC[t, j] = -2 sum_i u_i[j] y_i[t],    u_i = C^-1 y_i.

So one linear solve with C^T and one with C give the value and the whole gradient. If all steps count, J is the sum of
p_i times the mean noise variance under A_i. For a banded C, a covariance recursion computes this variance.

`Curvatures` can have a second term, the trajectory term. It is the mean noise variance over all steps in a direction of
curvature 0, times a weight. It has a closed form if the learning rate is constant. Under a learning-rate schedule, the
searches over Toeplitz and BLT strategies use the mean over a few evenly spaced steps instead. The rows of the workload
at these steps then take the place of the last rows a_i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from antiphase._check import Array
from antiphase._error import trajectory_weight
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.banded_error import BandedError, check_columns, column_squares
from antiphase._optimize.toeplitz_error import series_inverse, series_is_faster, squared_error
from antiphase._workload import Workload

MAX_SOLVED_STEPS = 1 << 16  # for more steps and a Toeplitz workload, truncated impulse responses are faster
FORGOTTEN = 1e-16  # entries of a_i below this fraction of its largest entry are negligible
SAMPLED_STEPS = 8  # number of steps at which a search evaluates the trajectory term under a learning-rate schedule
DIED_OUT = 1e-13  # entries of C^-T a_i below this fraction of the largest entry are negligible

SquareAndGradient = Callable[[Array], tuple[float, Array]]  # coefficients of C -> squared error, and its gradient


def toeplitz_squared_error(workload: Workload, objective: Objective, steps: int) -> SquareAndGradient | None:
    """Return a function from the coefficients of a Toeplitz C to the squared error and its gradient.

    Returns None if the squared error needs a covariance recursion. This is the case if the workload is not Toeplitz and
    the errors of all steps count: for "rms", for "max", and for `Curvatures` with steps="all".
    """
    if isinstance(objective, Curvatures):
        return _curvatures_error(workload, objective, steps)
    inverse, counted = workload.toeplitz_inverse, steps if objective == "rms" else 1
    if inverse is None:
        return None
    return lambda c: squared_error(c, inverse, steps, counted)


def _curvatures_error(workload: Workload, objective: Curvatures, steps: int) -> SquareAndGradient | None:
    if objective.way is not None:
        return _with_trajectory(workload, objective, steps)
    counted, is_constant = objective.counted_steps(steps), workload.toeplitz_inverse is not None
    averages = objective.averaged_steps(steps) > 1
    if counted == 1 and (steps <= MAX_SOLVED_STEPS or averages or not is_constant):
        return RowsToeplitzError(remembered_rows(workload, objective, steps), steps)
    if not is_constant:
        return None
    inverses = [A.toeplitz_inverse for A in objective.workloads(workload)]

    def error(c: Array) -> tuple[float, Array]:
        value, gradient = 0.0, np.zeros_like(c)
        for share, inverse in zip(objective.shares, inverses, strict=True):
            assert inverse is not None
            part, slope = squared_error(c, inverse, steps, counted)
            value += share * part
            gradient += share * slope
        return value, gradient

    return error


def _with_trajectory(workload: Workload, objective: Curvatures, steps: int) -> SquareAndGradient | None:
    """Return the squared error without the trajectory term, plus the weighted trajectory term."""
    at_end = _curvatures_error(workload, objective.destination, steps)
    if at_end is None:
        return None
    weight, inverse = trajectory_weight(workload, objective, steps), workload.toeplitz_inverse
    over_steps: SquareAndGradient = RowsToeplitzError(sampled_rows(workload, steps, steps), steps)
    if inverse is not None:
        over_steps = partial(_mean_over_steps, inverse, steps)

    def error(c: Array) -> tuple[float, Array]:
        (end, by_end), (mean, by_mean) = at_end(c), over_steps(c)
        return end + weight * mean, by_end + weight * by_mean

    return error


def _mean_over_steps(inverse: Array, steps: int, c: Array) -> tuple[float, Array]:
    return squared_error(c, inverse, steps, steps)


def sampled_rows(workload: Workload, run: int, steps: int) -> Array:
    """Return rows of the workload at evenly spaced steps among the last `steps` steps of a run of `run` steps.

    The rows are scaled by 1 / sqrt(number of rows). They are the columns of the result R, of shape (steps, rows). For a
    strategy C, the sum of the squared entries of R^T C^-1 is the mean noise variance at the chosen steps.
    """
    from antiphase._kernels import last_row

    inverse = workload.inverse_bands(run)[run - steps :]
    count = min(SAMPLED_STEPS, steps)
    rows = np.zeros((steps, count))
    for k in range(count):
        end = math.ceil((k + 0.5) * steps / count)
        rows[:end, k] = last_row(inverse[:end], 1) / math.sqrt(count)
    return rows


class RowsToeplitzError:
    """J = sum_i |C^-T a_i|^2 as a function of the coefficients of a Toeplitz C, for given rows a_i.

    In directions with positive curvature, SGD damps early noise. So early steps are left out if the entries of all a_i
    and of all y_i = C^-T a_i are negligible there.

    Args:
        rows: an array whose columns are the rows a_i, for the last steps of the run only. At all earlier steps, the
            entries of the a_i are 0.
        steps: number of steps, n.
    """

    def __init__(self, rows: Array, steps: int) -> None:
        self._steps, self._rows = steps, rows

    def __call__(self, c: Array) -> tuple[float, Array]:
        """Return J and its gradient. J is infinite if C^-1 grows too fast."""
        length = min(self._steps, len(self._rows) + max(1024, 16 * len(c)))
        while True:
            rows = np.concatenate([np.zeros((length - len(self._rows), self._rows.shape[1])), self._rows])
            y, pull_back = _solved(c, rows)
            largest = float(np.abs(y).max())
            if not math.isfinite(largest):
                return math.inf, np.zeros_like(c)
            if length == self._steps or np.abs(y[: len(c)]).max() <= DIED_OUT * largest:
                return float(np.einsum("ti,ti->", y, y)), pull_back()
            length = min(self._steps, 2 * length)


def remembered_rows(workload: Workload, objective: Curvatures, steps: int) -> Array:
    """Return the last rows a_i of sqrt(p_i) A_i, without the first entries if these are negligible for all i.

    The result has shape (remembered steps, curvatures), and its columns are the rows a_i. The remembered steps are the
    steps at the end of the run for which some entry is not negligible.
    """
    from antiphase._kernels import last_row

    rows, counted = [], objective.averaged_steps(steps)
    for share, A in zip(objective.shares, objective.workloads(workload), strict=True):
        inverse = None if A.toeplitz_inverse is not None else A.inverse_bands(steps)
        length = min(steps, max(4096, 2 * counted))
        while True:
            row = last_row(_constant_bands(A, length) if inverse is None else inverse[steps - length :], counted)
            small = np.abs(row) <= FORGOTTEN * np.abs(row).max()
            if length == steps or small[: length // 4].all():
                break
            length = min(steps, 4 * length)
        first = int(np.argmin(small))  # the first entry that is not negligible
        rows.append(math.sqrt(share) * row[first:])
    out = np.zeros((max(map(len, rows)), len(rows)))
    for i, row in enumerate(rows):
        out[len(out) - len(row) :, i] = row
    return out


def _constant_bands(workload: Workload, steps: int) -> Array:
    """Return the bands of A^-1 for a Toeplitz workload A, of shape (steps, bands)."""
    first = workload.toeplitz_inverse
    assert first is not None
    return np.tile(first, (steps, 1))


def _solved(c: Array, rows: Array) -> tuple[Array, Callable[[], Array]]:
    """Return y = C^-T rows, and a function that returns the gradient of |y|^2 with respect to c.

    Here c is the first column of the Toeplitz matrix C, and the columns of `rows` are vectors.
    """
    if series_is_faster(c, len(rows)):
        return _solved_by_series(c, rows)
    from antiphase._kernels import outer_bands, solve_columns, solve_transposed

    y = solve_transposed(c[None], rows)

    def pull_back() -> Array:
        gradient = np.empty((1, len(c)))
        outer_bands(solve_columns(c[None], y), y, gradient)
        return gradient[0]

    return y, pull_back


def _solved_by_series(c: Array, rows: Array) -> tuple[Array, Callable[[], Array]]:
    """Return the same as `_solved`, computed by FFTs.

    Multiplying by C^-T means convolving with the power series 1 / c(x), backwards in time.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    n = len(rows)
    size = next_fast_len(2 * n, real=True)
    inverse = rfft(series_inverse(c, n), size)[:, None]
    y = irfft(inverse * rfft(rows[::-1], size, axis=0), size, axis=0)[:n][::-1]

    def pull_back() -> Array:
        transformed = rfft(y, size, axis=0)
        u = irfft(inverse * transformed, size, axis=0)[:n]
        correlation = (rfft(u, size, axis=0).conj() * transformed).sum(axis=1)
        return -2.0 * irfft(correlation, size)[: len(c)]

    return y, pull_back


class LastIterateBandedError:
    """Computes log(error) of the last iterate for a banded C, with the interface of `BandedError`.

    Args:
        workload: the workload matrix for curvature 0.
        objective: the curvatures. Its `steps` must not be "all", and it must have no trajectory term.
        steps: number of steps, n.
    """

    def __init__(self, workload: Workload, objective: Curvatures, steps: int) -> None:
        self.rows = objective.last_rows(workload, steps)

    def reach(self) -> Array:
        """Return the influence of every step on the error: the sum of the squared entries of all a_i at this step."""
        return np.einsum("ti,ti->t", self.rows, self.rows)

    def tangent(self, columns: Array, power: float, gradient: Array) -> float:
        """Return J and, if it is finite, write its gradient into `gradient`. `power` is not used."""
        from antiphase._kernels import outer_bands, solve_columns, solve_transposed

        y = solve_transposed(columns, self.rows)
        value = float(np.einsum("ti,ti->", y, y))
        if math.isfinite(value):
            outer_bands(solve_columns(columns, y), y, gradient)
        return value

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """Return log sqrt(J) and, if it is finite, fill in its gradient."""
        return _logarithm(self.tangent(columns, power, gradient), gradient)


class MeanBandedError:
    """Computes log(error) over all steps for a banded C, with the interface of `BandedError`.

    Args:
        workload: the workload matrix for curvature 0.
        objective: the curvatures. Its `steps` must be "all", and it must have no trajectory term.
        steps: number of steps, n.
        bands: number of bands of C.
    """

    def __init__(self, workload: Workload, objective: Curvatures, steps: int, bands: int) -> None:
        self._inverses = [A.inverse_bands(steps) for A in objective.workloads(workload)]
        self._shares, counted = objective.shares, objective.counted_steps(steps)
        self._weights = np.where(np.arange(steps) >= steps - counted, 1.0 / counted, 0.0)
        self._covariance = np.empty((steps, bands + self._inverses[0].shape[1] - 1))
        self._part = np.empty((steps, bands))

    def reach(self) -> Array:
        """Return the influence of every step j on the error: the sum of p_i |column j of A_i|^2 over i."""
        pairs = zip(self._shares, self._inverses, strict=True)
        return np.sum([share * column_squares(inverse) for share, inverse in pairs], axis=0)

    def tangent(self, columns: Array, power: float, gradient: Array) -> float:
        """Return J and, if it is finite, fill in its gradient."""
        from antiphase._kernels import covariance_backward, covariance_forward

        total = 0.0
        gradient[:] = 0.0
        for share, inverse in zip(self._shares, self._inverses, strict=True):
            covariance_forward(columns, inverse, self._covariance)
            value = float(np.einsum("t,t->", self._weights, self._covariance[:, 0]))
            if not math.isfinite(value):
                return math.inf
            total += share * value
            covariance_backward(columns, inverse, self._covariance, share * self._weights, self._part)
            gradient += self._part
        return total

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """Return log sqrt(J) and, if it is finite, fill in its gradient."""
        return _logarithm(self.tangent(columns, power, gradient), gradient)


def _logarithm(square: float, gradient: Array) -> float:
    """Return log sqrt(square), and convert `gradient` in place from the gradient of `square` to that of the result."""
    if not math.isfinite(square):
        return math.inf
    gradient *= 0.5 / square
    return 0.5 * math.log(square)


class SumBandedError:
    """Computes log(error) for a weighted sum of squared errors, with the interface of `BandedError`.

    Args:
        parts: pairs of a weight and an object with the interface of `BandedError`. The weight multiplies the squared
            error that the object computes.
        steps: number of steps, n.
        bands: number of bands of C.
    """

    def __init__(
        self, parts: Sequence[tuple[float, LastIterateBandedError | MeanBandedError]], steps: int, bands: int
    ) -> None:
        self._parts, self._gradient = parts, np.empty((steps, bands))

    def reach(self) -> Array:
        """Return the influence of each step on the error."""
        return np.sum([weight * error.reach() for weight, error in self._parts], axis=0)

    def tangent(self, columns: Array, power: float, gradient: Array) -> float:
        """Return J and, if it is finite, fill in its gradient."""
        total = 0.0
        gradient[:] = 0.0
        for weight, error in self._parts:
            total += weight * error.tangent(columns, power, self._gradient)
            if not math.isfinite(total):
                return math.inf
            gradient += weight * self._gradient
        return total

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """Return log sqrt(J) and, if it is finite, fill in its gradient."""
        return _logarithm(self.tangent(columns, power, gradient), gradient)


LogBandedError = BandedError | LastIterateBandedError | MeanBandedError | SumBandedError


def banded_error(workload: Workload, objective: Objective, steps: int, bands: int) -> LogBandedError:
    """Return an object with the interface of `BandedError` that computes log(error) under any objective."""
    if not isinstance(objective, Curvatures):
        return BandedError(workload, steps, bands)
    check_columns(steps, bands)
    if objective.way is not None:
        parts = [(1.0, objective.destination), (trajectory_weight(workload, objective, steps), objective.way)]
        made = [(weight, banded_error(workload, part, steps, bands)) for weight, part in parts]
        return SumBandedError(made, steps, bands)  # type: ignore[arg-type]  # both are Curvatures
    if objective.counted_steps(steps) == 1:
        return LastIterateBandedError(workload, objective, steps)
    return MeanBandedError(workload, objective, steps, bands)
