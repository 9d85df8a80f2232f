"""The dense problem under minimum separation b, for strategies C with at most b bands.

A participation pattern is the set of steps in which one example takes part. With at most b bands, the columns of C for
the steps of a pattern are orthogonal. Let x_i be the squared norm of column i. Then

    sensitivity^2 = max over patterns p of sum_{i in p} x_i
                  = min { sum_w cost_w q_w : q_w >= 0, x_i <= sum of q_w over all windows w that contain i }.

A window w is an interval of steps with a cost, and q_w is a variable. The intervals of b steps have cost 1. The
interval of all steps has cost k, the number of participations. The maximum and the minimum are equal by linear
programming duality: the constraints on the patterns form an interval matrix, so the vertices of their polytope are
integral.

For sensitivity 1, the products cost_w q_w are non-negative weights of the windows that sum to 1. So instead of a C with
a sensitivity constraint, the search optimises these weights and the directions of the columns of C. V and U stand for
the matrices in `MinSeparationProblem.bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.banded_error import BandedError, objective_powers, power_mean
from antiphase._optimize.curvature_error import LogBandedError, banded_error
from antiphase._optimize.dense.curvatures import gram_factor
from antiphase._optimize.dense.dual import EPS
from antiphase._optimize.lbfgs import lbfgs_minimize
from antiphase._optimize.linear_algebra import lower_inverse
from antiphase._optimize.solution import SearchLimits
from antiphase._workload import Workload
from antiphase.strategies import Toeplitz

SHARE_OF_ALL_STEPS = 1e-3  # weight of the error of all steps, relative to the other error, in `RegularizedError`


class MinSeparationProblem:
    """Computes log(loss) at a point. The point determines a strategy C with sensitivity at most 1.

    A point is a vector. Its first entries are the columns of C, up to the scale of each column. Unless all columns must
    have equal norms, the next entries are the square roots of the weights of the windows, up to a common scale. The
    first of these weights is that of the window of all steps.

    Args:
        steps: number of steps, n.
        separation: smallest number of steps between participations, b, which is also the number of bands.
        count: number of participations, k.
        workload: the workload matrix, A.
        equal_norms: True if all columns must have norm 1 / sqrt(k).
        objective: the error to minimise.
    """

    def __init__(
        self,
        steps: int,
        separation: int,
        count: int,
        workload: Workload,
        equal_norms: bool,
        objective: Objective = "rms",
    ) -> None:
        self._steps, self._width, self._count = steps, separation, count
        self._workload, self._equal, self._objective = workload, equal_norms, objective
        self._error: LogBandedError | RegularizedError = banded_error(workload, objective, steps, separation)
        self._factor: Array | None = None
        if isinstance(objective, Curvatures):
            self._factor = gram_factor(workload, objective, steps)
            if objective.counted_steps(steps) < steps and objective.way is None:
                self._error = RegularizedError(self._error, workload, objective, steps, separation)

    def start(self) -> Array:
        """Return the starting point.

        C is the square root of the prefix-sum matrix, truncated to `separation` bands. The window of all steps has half
        of the weight. The other half is spread equally over the other windows.
        """
        columns = Toeplitz.square_root(self._steps, self._width).columns()
        windows = self._steps - self._width + 1
        roots = np.concatenate([[1.0], np.full(windows, windows**-0.5)])
        return np.concatenate([columns.ravel(), roots[: 0 if self._equal else None]])

    def columns(self, point: Array) -> Array:
        """Return C in the layout of `Banded`, with sensitivity at most 1."""
        bands, roots = self._split(point)
        return bands * np.sqrt(self._squares(roots) / _row_squares(bands))[:, None]

    def value(self, point: Array, gradient: Array, power: float) -> float:
        """Return log(loss), and write its gradient to `gradient`.

        For "rms" and "max", the error is the root of a power mean of the variances of the steps, with exponent `power`.
        """
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

    def loss(self, point: Array) -> float:
        """Return the error, an upper bound on the loss. The bound holds because the sensitivity is at most 1."""
        columns = self.columns(point)
        if not isinstance(self._error, BandedError):
            error = self._error.error if isinstance(self._error, RegularizedError) else self._error
            return math.sqrt(error.tangent(columns, 1.0, np.empty_like(columns)))
        variances = self._error.variances(columns)
        return math.sqrt(variances.mean() if self._objective == "rms" else variances.max())

    def bound(self, point: Array, power: float) -> float:
        """Return a proved lower bound on the squared loss of every feasible C.

        Let X = C^T C for the C of this point, and V = A^T diag(w) A with weights w of the steps. For `Curvatures`, V is
        a sum of such matrices. The bound uses the dual function (see `dual`) at a multiplier U. U is X^-1 V X^-1, but
        with zeros in place of the off-diagonal entries inside the band. At the optimum, these entries of X^-1 V X^-1
        are 0 already.
        """
        n, inverse = self._steps, lower_inverse(_dense(self.columns(point)))
        factor, y = self._tangent(inverse, power)
        u = inverse @ y
        U = u @ u.T
        i, j = np.ogrid[:n, :n]
        U[(np.abs(i - j) < self._width) & (i != j)] = 0.0
        values = np.linalg.eigvalsh(U)
        U[np.diag_indices(n)] += max(0.0, 1e-12 * values[-1] - values[0])
        R = np.linalg.cholesky(U)
        M = factor.T @ R
        sigma = np.linalg.svd(M, compute_uv=False)
        nuclear = float(np.maximum(sigma - 4 * n * EPS * np.linalg.norm(M), 0.0).sum())
        # This is an allowance for rounding errors in R R^T = U. The trace of a feasible X is at most n.
        rounding = 4 * n * EPS * float((np.abs(R) @ (np.abs(R.T) @ np.ones(n))).max()) * n
        return nuclear**2 / (self._mass(np.diag(U)) * (1.0 + 16 * n * EPS) + rounding)

    def _tangent(self, inverse: Array, power: float) -> tuple[Array, Array]:
        """Return F with F F^T = V (see `bound`), and C^-T F'.

        F' is `RegularizedError.factor(F)` if the error is a `RegularizedError`, and F otherwise.
        """
        from antiphase._kernels import filter_columns

        if self._factor is not None:
            error = self._error
            wide = error.factor(self._factor) if isinstance(error, RegularizedError) else self._factor
            return self._factor, inverse.T @ wide
        assert isinstance(self._error, BandedError)
        B = inverse.copy()
        filter_columns(B, self._error.inverse)
        weights = power_mean(np.einsum("ij,ij->i", B, B), power)[1]
        roots = np.sqrt(weights / weights.sum())
        return (roots[:, None] * self._workload.matrix(self._steps)).T, (roots[:, None] * B).T

    def _split(self, vector: Array) -> tuple[Array, Array]:
        """Return views of the columns and of the square roots of the weights."""
        size = self._steps * self._width
        return vector[:size].reshape(self._steps, self._width), vector[size:]

    def _squares(self, roots: Array) -> Array:
        """Return the squared column norms x that the weights of the windows allow, given the roots of the weights."""
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
        """Return the largest sum_i x_i u_i over all feasible squared column norms x, where u is `diagonal`."""
        if self._equal:
            return float(diagonal.sum()) / self._count
        sums = np.concatenate([[0.0], np.cumsum(diagonal)])
        return float(max((sums[self._width :] - sums[: -self._width]).max(), sums[-1] / self._count))


class RegularizedError:
    """Computes the error of the last iterate or of an averaged model, plus a small multiple of the error of all steps.

    If not all steps count, the matrix V of `MinSeparationProblem.bound` is singular. Without the second term, most of C
    would be undetermined, and the search would be slow. The second term is computed for one direction only, which has
    the mean curvature.

    Args:
        error: the error of the last iterate or of the averaged model.
        workload: the workload matrix for curvature 0.
        objective: the curvatures.
        steps: number of steps, n.
        bands: number of bands of C.
    """

    def __init__(
        self, error: LogBandedError, workload: Workload, objective: Curvatures, steps: int, bands: int
    ) -> None:
        middle = workload.with_curvature(float(objective.shares @ objective.values))
        self.error, self._every, self._matrix = error, BandedError(middle, steps, bands), middle.matrix(steps)
        self._share = SHARE_OF_ALL_STEPS * float(error.reach().sum() / self._every.reach().sum())
        self._slope = np.empty((steps, bands))

    def factor(self, factor: Array) -> Array:
        """Return F' such that F' F'^T is the matrix V of `MinSeparationProblem.bound` for the sum of both terms.

        Args:
            factor: a matrix F such that F F^T is the matrix V for the first term alone.
        """
        return np.concatenate([factor, math.sqrt(self._share) * self._matrix.T], axis=1)

    def __call__(self, columns: Array, power: float, gradient: Array) -> float:
        """Return the logarithm of the root of the sum of both terms. If it is finite, write its gradient."""
        value = self.error.tangent(columns, power, gradient)
        if not math.isfinite(value):
            return math.inf
        n = len(columns)
        value += self._share * n * self._every.tangent(columns, 1.0, self._slope)
        if not math.isfinite(value):
            return math.inf
        gradient += self._share * n * self._slope
        gradient *= 0.5 / value
        return 0.5 * math.log(value)


def solve_min_separation(
    problem: MinSeparationProblem, objective: Objective, limits: SearchLimits, tolerance: float
) -> tuple[Array, float, bool]:
    """Return the best point, a lower bound on the squared loss, and whether loss and bound agree to `tolerance`.

    The function minimises the loss for each exponent in `objective_powers` in turn. It then repeats the search for the
    last exponent with smaller and smaller tolerances, until loss and bound agree.
    """
    point, bound, powers = problem.start(), 0.0, objective_powers(objective)
    finer = (1e-3, 1e-4, 1e-5, 1e-6)
    for power, share in [*((power, 1e-2) for power in powers), *((powers[-1], share) for share in finer)]:
        point = lbfgs_minimize(_function(problem, power), point, limits, tolerance * share).point
        bound = max(bound, problem.bound(point, power))
        converged = problem.loss(point) <= math.sqrt(bound) * (1.0 + tolerance)
        if converged or limits.reached:
            break
    return point, bound, converged


def _function(problem: MinSeparationProblem, power: float) -> Callable[[Array, Array], float]:
    return lambda point, gradient: problem.value(point, gradient, power)


def _dense(columns: Array) -> Array:
    """Return the dense matrix of banded columns."""
    C = np.zeros((len(columns), len(columns)))
    j, r = np.nonzero(columns)
    C[j + r, j] = columns[j, r]
    return C


def _row_squares(rows: Array) -> Array:
    return np.einsum("jr,jr->j", rows, rows)
