"""Optimise a banded strategy in which every column has its own coefficients."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from antiphase._check import Array
from antiphase._errors import InvalidArgument
from antiphase._loss import loss
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.banded_error import objective_powers
from antiphase._optimize.curvature_error import banded_error
from antiphase._optimize.lbfgs import lbfgs_minimize
from antiphase._optimize.participation_limits import ParticipationLimits, check_bands, worst_case_limits
from antiphase._optimize.solution import SearchLimits, Solution
from antiphase._optimize.toeplitz import toeplitz_coefficients
from antiphase._participation import FixedEpochs, Participation, SingleParticipation
from antiphase._workload import Workload
from antiphase.strategies import Banded, Toeplitz


def optimize_banded(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    *,
    bands: int | None = None,
    equal_norms: bool = True,
) -> Solution:
    """Minimise the error over all banded strategy matrices C with columns of norm 1 and bands <= separation.

    The separation is the smallest difference between two steps in which one example takes part. With at most this many
    bands, the columns of C for the steps of one example are orthogonal. If the columns have norm 1, the sensitivity is
    therefore sqrt(k) for k participations.

    With equal_norms=False, column norms may differ. This option requires fixed epochs of b steps. Then only the sum of
    the squared column norms over the steps i, i + b, i + 2b, ... must equal k for every i, so the sensitivity is again
    sqrt(k).

    A covariance recursion computes the error, and the same recursion in reverse computes the gradient. Both take
    O(n bands^2) operations. The search starts from the best Toeplitz strategy, with columns scaled to norm 1.

    **Guarantee**: no C that satisfies the constraints above has a loss below `lower_bound`. The squared error is a
    convex function of X = C^T C, so this function is nowhere below its tangent at the solution. The bound follows from
    this tangent (see `_BandedProblem.lower_bound`).

    Args:
        steps: number of steps, n.
        participation: the steps in which an example can take part.
        workload: the workload matrix, A.
        objective: the error to minimise: "rms" or "max" over the steps, or a `Curvatures` object, which averages the
            noise over directions of different curvature.
        limits: when to stop early.
        bands: number of diagonals, at most the separation; by default the smallest of 32, the number of steps and the
            separation.
        equal_norms: True if every column must have norm 1.

    Reference: Choquette-Choo et al. 2023 (amplified banded), Problem 2 and App. B; McKenna 2024 (scaling), sect. 3.1.
    """
    owner = "optimize('banded')"
    allowed = worst_case_limits(owner, participation, steps)
    count = check_bands(owner, bands, steps, allowed.separation)
    if count > allowed.separation:
        raise InvalidArgument(
            f"{owner} requires bands <= separation. Got {count} bands and a separation of {allowed.separation} steps.",
            hint=f"use bands={allowed.separation} or fewer, or family='toeplitz', which allows more bands",
        )
    period = _period(owner, participation, allowed, steps, equal_norms)
    problem = _BandedProblem(workload, objective, steps, count, allowed.count, period)
    columns, bound, converged = problem.solve(_start(steps, allowed, workload, objective, limits, count), limits)
    strategy = Banded(columns)
    value = loss(strategy, workload, participation, objective)
    return Solution(strategy, value, min(bound, value), limits.count, limits.elapsed, converged)


def _period(
    owner: str, participation: Participation, allowed: ParticipationLimits, steps: int, equal_norms: bool
) -> int:
    """Return the period b for which the sum of squared column norms over steps i, i + b, i + 2b, ... is fixed.

    If column norms may differ, the period is the number of steps per epoch. If every column has norm 1, the period is
    the number of all steps, so that each sum has one term.
    """
    if equal_norms or isinstance(participation.worst_case, SingleParticipation):
        return steps
    if not isinstance(participation.worst_case, FixedEpochs):
        raise InvalidArgument(
            f"{owner} with equal_norms=False requires fixed epochs. Got {type(participation).__name__}.",
            hint="use FixedEpochs or BallsInBins, or equal_norms=True",
        )
    return allowed.separation


def _start(
    steps: int,
    allowed: ParticipationLimits,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    bands: int,
) -> Array:
    """Return the columns of the best Toeplitz strategy, scaled to norm 1."""
    quiet = SearchLimits(seconds=limits.seconds, started=limits.started)
    c, _ = toeplitz_coefficients(steps, allowed, workload, objective, quiet, bands)
    return Toeplitz(c, steps, column_normalized=True).columns()


class _BandedProblem:
    """Computes log(loss) from unnormalised columns of C, after scaling them to the required norms.

    A residue class consists of all steps that are equal modulo `period`. The columns of one class are scaled by the
    same factor. The error changes fastest with the columns that affect many steps. To balance this, the variables of
    the search are the entries of each column divided by a factor `stretch` for this column.

    Args:
        workload: the workload matrix, A.
        objective: the error to minimise.
        steps: number of steps, n.
        bands: number of bands of C.
        count: number of participations, k.
        period: number of residue classes; equal to `steps` if every column has norm 1.
    """

    def __init__(
        self, workload: Workload, objective: Objective, steps: int, bands: int, count: int, period: int
    ) -> None:
        self._error = banded_error(workload, objective, steps, bands)
        self._objective = objective
        self._columns = np.empty((steps, bands))
        self._count = count
        self._period = period
        self._total = 1.0 if period == steps else float(count)  # sum of the squared column norms of a residue class
        reach = self._error.reach()
        self._stretch = 1.0 / np.sqrt(reach / reach.max() + bands / steps)

    def solve(self, start: Array, limits: SearchLimits) -> tuple[Array, float, bool]:
        """Minimise the loss from `start`, for each exponent in `objective_powers` in turn.

        The exponent belongs to the power mean of the variances, from which the error is computed (see `banded_error`).

        Returns the columns, the lower bound on the loss, and whether the search converged.
        """
        point, bound, converged = (start / self._stretch[:, None]).ravel(), 0.0, False
        for power in objective_powers(self._objective):
            function = partial(self._evaluate, power=power)
            end = lbfgs_minimize(function, point, limits, _tolerance(self._objective, start.size))
            point, converged = end.point, end.converged
            bound = max(bound, self.lower_bound(self._scaled(point), power))
        return self._scaled(point).copy(), bound, converged

    def lower_bound(self, columns: Array, power: float) -> float:
        """Return a lower bound on the loss of every C that the problem allows.

        Let X = C^T C for the given columns, and let X' be the same matrix for another C that the problem allows. Let
        phi(X) = sum_i w_i var_i, where var_i is the noise variance of step i. The weights w are chosen such that
        phi(X') is at most the squared error of X' for every X'. For `Curvatures`, phi is the squared error itself.

        Let -H be the gradient of phi at X. Since phi is homogeneous of degree -1, <H, X> = phi(X). Since phi is also
        convex, phi(X') >= 2 phi(X) - <H, X'>. For positive semidefinite X', |X'_ij| <= (X'_ii + X'_jj) / 2. So <H, X'>
        is at most sum_i X'_ii h_i, where h_i is the sum of |H_ij| over all j inside the band. The inequality holds for
        every multiple of X as well. The best multiple gives the bound phi(X)^2 / (largest sum_i X'_ii h_i) on the
        squared error of X'.
        """
        from antiphase._kernels import gram_gradient

        gradient = np.empty_like(columns)
        phi = self._error.tangent(columns, power, gradient)
        return phi * math.sqrt(self._count / self._largest_trace(np.abs(gram_gradient(columns, gradient))))

    def _largest_trace(self, H: Array) -> float:
        """Return the largest sum_i X'_ii h_i over all X' that the problem allows (see `lower_bound`).

        `H` holds the absolute values of the entries inside the band: H[j, r] = |H_{j + r, j}|.
        """
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
        """Return the normalised columns, in an array that the next call overwrites."""
        scales = self._scales(point) if scales is None else scales
        return np.multiply(point.reshape(self._columns.shape), scales[:, None], out=self._columns)

    def _scales(self, point: Array) -> Array:
        theta = point.reshape(self._columns.shape)
        squares = np.einsum("jr,jr->j", theta, theta) * self._stretch**2
        return self._stretch * np.sqrt(self._total / self._class_sums(squares))

    def _class_sums(self, values: Array) -> Array:
        """Return, for every step, the sum of `values` over the residue class that contains the step."""
        if self._period == len(values):
            return values
        residue, sums = np.arange(len(values)) % self._period, np.zeros(self._period)
        np.add.at(sums, residue, values)
        return sums[residue]


def _tolerance(objective: Objective, size: int) -> float:
    """Return the decrease of log(loss) per iteration below which the search stops.

    For "rms", problems with more variables get a larger tolerance. For `Curvatures`, the error is nearly flat in most
    directions, so a smaller tolerance would take ten times as long and lower the error by only 0.05 %.
    """
    if isinstance(objective, Curvatures):
        return 1e-6
    return max(1e-11, 1e-15 * size) if objective == "rms" else 1e-7
