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
from antiphase._optimize._objective import POWERS, power_mean
from antiphase._optimize._solution import Limits
from antiphase._optimize._triangular import lower_inverse
from antiphase._workload import Workload
from antiphase.strategies import Toeplitz


class SeparatedProblem:
    """log(loss) as a function of the bands of C and, without equal norms, the weights of the windows.

    A point holds the columns of C up to scale, then square roots of the weights, up to
    scale: that of all steps, then of the windows.

    Args:
        steps: n.
        separation: b.
        count: k.
        bands: at most b.
        workload: A.
        equal_norms: all columns have norm 1 / sqrt(k).
    """

    def __init__(
        self, steps: int, separation: int, count: int, bands: int, workload: Workload, equal_norms: bool
    ) -> None:
        self._steps, self._width, self._count, self._bands = steps, separation, count, bands
        self._workload, self._inverse, self._equal = workload, workload.inverse_bands(steps), equal_norms
        j, r = np.indices((steps, bands))
        self._inside = j + r < steps
        self._rows, self._columns = (j + r)[self._inside], j[self._inside]

    def start(self) -> Array:
        """The square root of the prefix sum, cut off, with half of the weight on equal norms."""
        coefficients = Toeplitz.square_root(self._steps, self._bands).coefficients
        columns = np.broadcast_to(coefficients, self._inside.shape)[self._inside]
        windows = self._steps - self._width + 1
        roots = np.concatenate([[1.0], np.full(windows, windows**-0.5)])
        return np.concatenate([columns, roots[: 0 if self._equal else None]])

    def columns(self, point: Array) -> Array:
        """C in the layout of `Banded`."""
        out = np.zeros(self._inside.shape)
        out[self._inside] = self._matrix(point)[self._rows, self._columns]
        return out

    def value(self, point: Array, gradient: Array, power: float) -> float:
        """log of the loss, with a power mean of the variances for the error."""
        C = self._matrix(point)
        if not np.isfinite(C).all() or not np.diag(C).all():
            return math.inf
        inverse, B, variances = self._errors(C)
        if not np.isfinite(variances).all():
            return math.inf
        result, weights = power_mean(variances, power)
        slope = -2.0 * (_weighted_gram(B, weights) @ inverse.T)  # derivative for C
        squares, size = np.einsum("ij,ij->j", C, C), len(self._rows)
        along = np.einsum("ij,ij->j", slope, C) / squares
        slope -= along * C
        scales = np.sqrt(squares / np.bincount(self._columns, point[:size] ** 2, self._steps))
        gradient[:size] = slope[self._rows, self._columns] * scales[self._columns]
        if not self._equal:
            gradient[size:] = self._root_gradient(point[size:], along / 2.0)
        return result

    def loss(self, point: Array, objective: Objective) -> float:
        """The error, which is the loss where the sensitivity is 1."""
        variances = self._errors(self._matrix(point))[2]
        return math.sqrt(variances.mean() if objective == "rms" else variances.max())

    def bound(self, point: Array, power: float) -> float:
        """A proved lower bound on the squared loss of every feasible C.

        The multiplier is X^-1 A^T diag(w) A X^-1 without the entries inside the band, which vanish at the optimum.
        """
        n, C = self._steps, self._matrix(point)
        inverse, B, variances = self._errors(C)
        weights = power_mean(variances, power)[1]
        weights /= weights.sum()
        U = inverse @ _weighted_gram(B, weights) @ inverse.T
        i, j = np.ogrid[:n, :n]
        U[(np.abs(i - j) < self._bands) & (i != j)] = 0.0
        values = np.linalg.eigvalsh(U)
        U[np.diag_indices(n)] += max(0.0, 1e-12 * values[-1] - values[0])
        R = np.linalg.cholesky(U)
        M = np.sqrt(weights)[:, None] * (self._workload.matrix(n) @ R)
        sigma = np.linalg.svd(M, compute_uv=False)
        nuclear = float(np.maximum(sigma - 4 * n * EPS * np.linalg.norm(M), 0.0).sum())
        # R R^T differs from U by rounding, and no feasible X has a trace above n.
        rounding = 4 * n * EPS * float((np.abs(R) @ (np.abs(R.T) @ np.ones(n))).max()) * n
        return nuclear**2 / (self._mass(np.diag(U)) * (1.0 + 16 * n * EPS) + rounding)

    def _matrix(self, point: Array) -> Array:
        """C, of sensitivity at most 1."""
        C = np.zeros((self._steps, self._steps))
        C[self._rows, self._columns] = point[: len(self._rows)]
        C *= np.sqrt(self._squares(point[len(self._rows) :]) / np.einsum("ij,ij->j", C, C))
        return C

    def _errors(self, C: Array) -> tuple[Array, Array, Array]:
        """C^-1, A C^-1 and its squared row norms."""
        from antiphase._kernels.covariance import filter_columns

        with np.errstate(all="ignore"):
            inverse = lower_inverse(C)
            B = inverse.copy()
            filter_columns(B, self._inverse)
            return inverse, B, np.einsum("ij,ij->i", B, B)

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
    for power, share in [*((power, 1e-2) for power in powers), (powers[-1], 1e-4), (powers[-1], 1e-6)]:
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
