"""The dense problem under minimum separation: X with at most as many bands as the separation.

Steps of one pattern are then orthogonal columns of C, and with x_i the squared norm of column i

    sens^2 = max over patterns of the sum of x_i = min { sum of q : x_i <= sum of the q_w of the windows w with i },

where the windows are all runs of b steps, and all steps together at cost k (the constraints of the pattern
polytope, an interval matrix, have integral vertices). The right-hand side turns the constraint into a choice of
weights q on a simplex.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._loss import Objective
from antiphase._optimize._descent import descend
from antiphase._optimize._dual import EPS
from antiphase._optimize._objective import POWERS, BandedError, power_mean
from antiphase._optimize._solution import Limits
from antiphase._optimize._triangular import lower_inverse
from antiphase._workload import Workload
from antiphase.strategies import Toeplitz

CLOSER = (1e-3, 1e-4, 1e-5, 1e-6)  # of the tolerance: decreases at which loss and bound are compared again


class SeparatedProblem:
    """log(loss) as a function of the bands of C and, without equal norms, the weights of the windows.

    A point holds the columns of C up to scale, then square roots of the weights, up to
    scale: that of all steps, then of the windows.

    Args:
        steps: n.
        separation: b, the number of bands too.
        count: k.
        workload: A.
        equal_norms: all columns have norm 1 / sqrt(k).
    """

    def __init__(self, steps: int, separation: int, count: int, workload: Workload, equal_norms: bool) -> None:
        self._steps, self._width, self._count = steps, separation, count
        self._workload, self._equal = workload, equal_norms
        self._error = BandedError(workload, steps, separation)

    def start(self) -> Array:
        """The square root of the prefix sum, cut off, with half of the weight on equal norms."""
        columns = Toeplitz.square_root(self._steps, self._width).columns()
        windows = self._steps - self._width + 1
        roots = np.concatenate([[1.0], np.full(windows, windows**-0.5)])
        return np.concatenate([columns.ravel(), roots[: 0 if self._equal else None]])

    def columns(self, point: Array) -> Array:
        """C in the layout of `Banded`, of sensitivity at most 1."""
        bands, roots = self._split(point)
        return bands * np.sqrt(self._squares(roots) / _row_squares(bands))[:, None]

    def value(self, point: Array, gradient: Array, power: float) -> float:
        """log of the loss, with a power mean of the variances for the error."""
        columns, (bands, roots), (slope, root_slope) = self.columns(point), self._split(point), self._split(gradient)
        if not np.isfinite(columns).all() or not columns[:, 0].all():
            return math.inf
        result = self._error(columns, power, slope)
        if not math.isfinite(result):
            return math.inf
        squares = _row_squares(columns)
        along = np.einsum("jr,jr->j", slope, columns) / squares
        slope -= along[:, None] * columns
        slope *= np.sqrt(squares / _row_squares(bands))[:, None]
        if not self._equal:
            root_slope[:] = self._root_gradient(roots, along / 2.0)
        return result

    def loss(self, point: Array, objective: Objective) -> float:
        """The error, which is the loss where the sensitivity is 1."""
        variances = self._error.variances(self.columns(point))
        return math.sqrt(variances.mean() if objective == "rms" else variances.max())

    def bound(self, point: Array, power: float) -> float:
        """A proved lower bound on the squared loss of every feasible C.

        The multiplier is X^-1 A^T diag(w) A X^-1 without the entries inside the band, which vanish at the optimum.
        """
        from antiphase._kernels.covariance import filter_columns

        n, inverse = self._steps, lower_inverse(_dense(self.columns(point)))
        B = inverse.copy()
        filter_columns(B, self._error.inverse)
        weights = power_mean(np.einsum("ij,ij->i", B, B), power)[1]
        weights /= weights.sum()
        U = inverse @ _weighted_gram(B, weights) @ inverse.T
        i, j = np.ogrid[:n, :n]
        U[(np.abs(i - j) < self._width) & (i != j)] = 0.0
        values = np.linalg.eigvalsh(U)
        U[np.diag_indices(n)] += max(0.0, 1e-12 * values[-1] - values[0])
        R = np.linalg.cholesky(U)
        M = np.sqrt(weights)[:, None] * (self._workload.matrix(n) @ R)
        sigma = np.linalg.svd(M, compute_uv=False)
        nuclear = float(np.maximum(sigma - 4 * n * EPS * np.linalg.norm(M), 0.0).sum())
        # R R^T differs from U by rounding, and no feasible X has a trace above n.
        rounding = 4 * n * EPS * float((np.abs(R) @ (np.abs(R.T) @ np.ones(n))).max()) * n
        return nuclear**2 / (self._mass(np.diag(U)) * (1.0 + 16 * n * EPS) + rounding)

    def _split(self, vector: Array) -> tuple[Array, Array]:
        """Views of the part for the columns and of the part for the weights."""
        size = self._steps * self._width
        return vector[:size].reshape(self._steps, self._width), vector[size:]

    def _squares(self, roots: Array) -> Array:
        """x, the squared column norms."""
        if self._equal:
            return np.full(self._steps, 1.0 / self._count)
        weights = roots**2 / (roots @ roots)
        ends = np.zeros(self._steps + 1)
        ends[: len(weights) - 1] = weights[1:]
        ends[self._width :] -= weights[1:]
        return weights[0] / self._count + np.maximum(np.cumsum(ends[:-1]), 0.0)

    def _root_gradient(self, roots: Array, slope: Array) -> Array:
        sums, total = np.concatenate([[0.0], np.cumsum(slope)]), float(roots @ roots)
        inner = np.concatenate([[sums[-1] / self._count], sums[self._width :] - sums[: -self._width]])
        return 2.0 * roots / total * (inner - (roots**2 @ inner) / total)

    def _mass(self, diagonal: Array) -> float:
        """The largest sum of x_i u_i."""
        if self._equal:
            return float(diagonal.sum()) / self._count
        sums = np.concatenate([[0.0], np.cumsum(diagonal)])
        return float(max((sums[self._width :] - sums[: -self._width]).max(), sums[-1] / self._count))


def descend_separated(
    problem: SeparatedProblem, objective: Objective, limits: Limits, tolerance: float
) -> tuple[Array, float, bool]:
    """The best point, the bound on the squared loss, and whether they agree to `tolerance`.

    Descends until the steps are small for each power of the objective in turn, and farther for the last one, until
    loss and bound agree.
    """
    point, bound, powers = problem.start(), 0.0, POWERS[objective]
    for power, share in [*((power, 1e-2) for power in powers), *((powers[-1], share) for share in CLOSER)]:
        point = descend(_function(problem, power), point, limits, tolerance * share).point
        bound = max(bound, problem.bound(point, power))
        converged = problem.loss(point, objective) <= math.sqrt(bound) * (1.0 + tolerance)
        if converged or limits.reached:
            break
    return point, bound, converged


def _function(problem: SeparatedProblem, power: float) -> Callable[[Array, Array], float]:
    return lambda point, gradient: problem.value(point, gradient, power)


def _weighted_gram(B: Array, weights: Array) -> Array:
    return (B.T * weights) @ B


def _dense(columns: Array) -> Array:
    C = np.zeros((len(columns), len(columns)))
    j, r = np.nonzero(columns)
    C[j + r, j] = columns[j, r]
    return C


def _row_squares(rows: Array) -> Array:
    return np.einsum("jr,jr->j", rows, rows)
