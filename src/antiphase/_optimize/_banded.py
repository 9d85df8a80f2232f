"""The best banded strategy, every column on its own."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._loss import Objective, loss
from antiphase._optimize._descent import descend
from antiphase._optimize._objective import POWERS, BandedError, power_mean
from antiphase._optimize._schema import Schema, check_bands, schema
from antiphase._optimize._solution import Limits, Solution
from antiphase._optimize._toeplitz import toeplitz_coefficients
from antiphase._optimize._vectors import inner
from antiphase._participation import FixedEpochs, Participation, SingleParticipation
from antiphase._workload import Workload
from antiphase.strategies import Banded, Toeplitz


def optimize_banded(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    *,
    bands: int | None = None,
    equal_norms: bool = True,
) -> Solution:
    """Minimise the error over all banded C with columns of norm 1 and bands <= separation.

    Columns of one pattern are then orthogonal and the sensitivity is sqrt(k). With equal_norms=False, for fixed
    epochs, only the sum over each residue class of steps is fixed: sum_j |C e_{i + j b}|^2 = k for every i.
    Value and gradient are the covariance recursion and its reverse, O(n bands^2); the search starts from the best
    Toeplitz strategy.

    **Guarantee**: `lower_bound` holds for every C of the stated problem. The problem is convex in X = C^T C; the
    bound is the tangent at the solution, minimised over all X with that diagonal.

    Args:
        steps: n.
        participation: how one example meets the steps.
        workload: A.
        objective: "rms" or "max".
        limits: when to stop early.
        bands: number of diagonals, at most the separation; by default the smallest of 32, steps and separation.
        equal_norms: every column of norm 1.

    Reference: Choquette-Choo et al. 2023 (amplified banded), Problem 2 and App. B; McKenna 2024 (scaling), sect. 3.1.
    """
    owner = "optimize('banded')"
    promise = schema(owner, participation, steps)
    count = check_bands(owner, bands, steps, promise.separation)
    if count > promise.separation:
        raise InvalidArgument(
            f"{owner} needs bands <= separation. Got {count} bands, {promise.separation} steps apart.",
            hint=f"use bands={promise.separation} or fewer, or family='toeplitz', which allows more",
        )
    period = _period(owner, participation, promise, steps, equal_norms)
    problem = _Problem(workload, steps, count, promise.count, period)
    columns, bound, converged = problem.solve(
        _start(steps, promise, workload, objective, limits, count), objective, limits
    )
    strategy = Banded(columns)
    value = loss(strategy, workload, participation, objective)
    return Solution(strategy, value, min(bound, value), limits.count, limits.elapsed, converged)


def _period(owner: str, participation: Participation, promise: Schema, steps: int, equal_norms: bool) -> int:
    """Steps that are equal modulo the period share one norm: all different, or one epoch."""
    if equal_norms or isinstance(participation.worst_case, SingleParticipation):
        return steps
    if not isinstance(participation.worst_case, FixedEpochs):
        raise InvalidArgument(
            f"{owner} with equal_norms=False needs fixed epochs. Got {type(participation).__name__}.",
            hint="use FixedEpochs or BallsInBins, or equal_norms=True",
        )
    return promise.separation


def _start(steps: int, promise: Schema, workload: Workload, objective: Objective, limits: Limits, bands: int) -> Array:
    quiet = Limits(seconds=limits.seconds, started=limits.started)
    c, _ = toeplitz_coefficients(steps, promise, workload, objective, quiet, bands)
    return Toeplitz(c, steps, column_normalized=True).columns()


class _Problem:
    """log(loss) as a function of columns at any scale, whose norms are divided out class by class.

    A column that matters to many steps has a steep error: point = columns / stretch evens this out.
    """

    def __init__(self, workload: Workload, steps: int, bands: int, count: int, period: int) -> None:
        self._error = BandedError(workload, steps, bands)
        self._columns = np.empty((steps, bands))
        self._count = count
        self._period = period
        self._total = 1.0 if period == steps else float(count)  # squared norms of a class
        reach = _column_squares(self._error.inverse)
        self._stretch = 1.0 / np.sqrt(reach / reach.max() + bands / steps)

    def solve(self, start: Array, objective: Objective, limits: Limits) -> tuple[Array, float, bool]:
        """Descend for each power of the objective in turn: columns, lower bound, whether no limit stopped it."""
        point, bound, converged = (start / self._stretch[:, None]).ravel(), 0.0, False
        for power in POWERS[objective]:
            end = descend(partial(self._evaluate, power=power), point, limits, _tolerance(objective, start.size))
            point, converged = end.point, end.converged
            bound = max(bound, self.lower_bound(self._scaled(point), power))
        return self._scaled(point).copy(), bound, converged

    def lower_bound(self, columns: Array, power: float) -> float:
        """A lower bound on the loss of every C of the problem.

        For weights w with phi(X) = sum_i w_i var_i at most the squared error everywhere and -H its gradient,
        phi(X') >= 2 phi(X) - <H, X'>, and <H, X'> <= sum_i X'_ii h_i with h_i the sum of |H_ij| inside the band,
        because |X'_ij| <= (X'_ii + X'_jj) / 2. At the best scale of X this is phi^2 / (largest sum of X'_ii h_i).
        """
        from antiphase._kernels.covariance_gradient import backward, gram_gradient

        error, gradient = self._error, np.empty_like(columns)
        variances = error.variances(columns)
        _, weights = power_mean(variances, power)
        weights /= weights.sum()
        phi = inner(weights, variances)
        backward(columns, error.inverse, error.covariance, weights, gradient)
        return phi * math.sqrt(self._count / self._largest(np.abs(gram_gradient(columns, gradient))))

    def _largest(self, H: Array) -> float:
        """The largest sum_i X'_ii h_i over the diagonals that the problem allows."""
        rows = H.sum(axis=1)
        for r in range(1, H.shape[1]):
            rows[r:] += H[: len(H) - r, r]
        if self._period == len(rows):
            return float(rows.sum())
        return self._count * math.fsum(rows[i :: self._period].max() for i in range(self._period))

    def _evaluate(self, point: Array, gradient: Array, power: float) -> float:
        scales = self._scales(point)
        columns, g = self._scaled(point, scales), gradient.reshape(self._columns.shape)
        value = self._error(columns, power, g)
        if not math.isfinite(value):
            return math.inf
        along = self._class_sums(np.einsum("jr,jr->j", columns, g)) / self._total
        columns *= along[:, None]
        g -= columns
        g *= scales[:, None]
        return value + 0.5 * math.log(self._count)

    def _scaled(self, point: Array, scales: Array | None = None) -> Array:
        """The columns, in an array that the next call uses again."""
        scales = self._scales(point) if scales is None else scales
        return np.multiply(point.reshape(self._columns.shape), scales[:, None], out=self._columns)

    def _scales(self, point: Array) -> Array:
        theta = point.reshape(self._columns.shape)
        squares = np.einsum("jr,jr->j", theta, theta) * self._stretch**2
        return self._stretch * np.sqrt(self._total / self._class_sums(squares))

    def _class_sums(self, values: Array) -> Array:
        """For every step the sum of the values over its class."""
        if self._period == len(values):
            return values
        residue, sums = np.arange(len(values)) % self._period, np.zeros(self._period)
        np.add.at(sums, residue, values)
        return sums[residue]


def _tolerance(objective: Objective, size: int) -> float:
    """Mean decrease an iteration at which to stop: finer costs more than it gains where steps are expensive."""
    return max(1e-11, 1e-15 * size) if objective == "rms" else 1e-7


def _column_squares(inverse: Array) -> Array:
    """|A e_j|^2 for every j: the variances of A^T run backwards in time, whose inverse has the same bands."""
    from antiphase._kernels.covariance import autoregressive_variances

    n = len(inverse)
    turned = np.zeros_like(inverse)
    for r in range(inverse.shape[1]):
        turned[r:, r] = inverse[r:, r][::-1]
    return autoregressive_variances(np.ones((n, 1)), turned)[::-1].copy()
