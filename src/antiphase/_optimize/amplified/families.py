"""The families of strategies that can be optimised under privacy amplification by balls-in-bins sampling.

Each family maps coordinates to strategies. It can also minimise a function that approximates log(noise_std x error)
near the current point: log error + log <H, G> / 2, called the tangent (see `optimizer`). Here H is a fixed matrix of
weights. G is the Gram matrix of the modes. A mode is the sum of the columns of |C| for the steps of one bin, where |C|
holds the absolute values of the strategy matrix C (see `weighted_gram`). <H, G> is the sum of the products H_ij G_ij.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.amplified.weighted_gram import BandedWeightedGram, BLTWeightedGram, ToeplitzWeightedGram
from antiphase._optimize.blt import blt_at
from antiphase._optimize.blt_decays import clipped, decays
from antiphase._optimize.blt_error import SquaredErrorFormula, curvatures_formula, squared_error_formula
from antiphase._optimize.blt_loss import StepwiseLoss, squared_sensitivity
from antiphase._optimize.curvature_error import banded_error, toeplitz_squared_error
from antiphase._optimize.lbfgs import lbfgs_minimize
from antiphase._optimize.newton import newton_minimize
from antiphase._optimize.solution import SearchLimits
from antiphase._workload import Workload
from antiphase.strategies import Banded, Strategy, Toeplitz

MAX_POWER = 64.0  # for "max", the largest variance is replaced by the power mean with this exponent
LBFGS_ITERATIONS = 40  # iterations for each matrix of weights H
NEWTON_ITERATIONS = 4  # iterations for each matrix of weights H


def _power(objective: Objective) -> float:
    return MAX_POWER if objective == "max" else 1.0


class Family(ABC):
    """Base class: a set of strategies that are described by coordinates."""

    @abstractmethod
    def strategy(self, point: Array) -> Strategy:
        """Return the strategy with the coordinates `point`."""

    @abstractmethod
    def minimize_tangent(self, point: Array, weights: Array) -> Array:
        """Minimise the tangent, log error + log <H, G> / 2 with H = `weights`, from `point`. Return the final point."""


@final
class ToeplitzFamily(Family):
    """Toeplitz strategies with non-negative, non-increasing coefficients.

    A point holds the differences of successive coefficients. All roots of a polynomial c(x) with such coefficients lie
    outside the open unit disc (Enestrom-Kakeya theorem). So the entries of C^-1 do not grow exponentially with the
    number of steps, and every point has a finite error.
    """

    def __init__(
        self, steps: int, workload: Workload, objective: Objective, iterations: int = LBFGS_ITERATIONS
    ) -> None:
        self._steps, self._workload, self._objective = steps, workload, objective
        self._iterations = iterations

    def point(self, coefficients: Array, bands: int) -> Array:
        """Return a starting point near the given coefficients.

        The coefficients are made non-increasing and padded with zeros to length `bands`. Then a small decreasing
        sequence is added, so that the search does not start with trailing coefficients of exactly 0.
        """
        c = np.zeros(bands)
        c[: len(coefficients)] = np.minimum.accumulate(np.maximum(coefficients, 0.0))
        c += 1e-4 * c[0] / np.arange(1, bands + 1)
        return -np.diff(c, append=0.0)

    def strategy(self, point: Array) -> Toeplitz:
        """Return the Toeplitz strategy, scaled to norm 1, without trailing zeros."""
        c = np.trim_zeros(_sums(point), "b")
        return Toeplitz(c / math.sqrt(float(c @ c)), self._steps)

    def minimize_tangent(self, point: Array, weights: Array) -> Array:
        """Minimise the tangent by L-BFGS-B."""
        from scipy.optimize import Bounds, minimize

        square, error = ToeplitzWeightedGram(weights, self._steps), self._error(len(point))

        def function(x: Array) -> tuple[float, Array]:
            c = _sums(x)
            (value, by_error), (modes, by_modes) = error(c), square(c)
            return value + 0.5 * math.log(modes), np.cumsum(by_error + 0.5 * by_modes / modes)

        lowest = np.zeros(len(point))
        lowest[0] = 1e-12 * float(point.sum())  # C must be invertible
        found = minimize(
            function,
            point,
            jac=True,
            method="L-BFGS-B",
            bounds=Bounds(lowest, np.full(len(point), np.inf)),
            options={"maxiter": self._iterations, "maxcor": 20},
        )
        return np.asarray(found.x)

    def _error(self, bands: int) -> Callable[[Array], tuple[float, Array]]:
        """Return a function from `bands` coefficients to log error and its gradient."""
        n, squared_error = self._steps, toeplitz_squared_error(self._workload, self._objective, self._steps)
        if squared_error is not None:

            def closed(c: Array) -> tuple[float, Array]:
                size, gradient = squared_error(c)
                return 0.5 * math.log(size), 0.5 * gradient / size

            return closed
        error, gradient = banded_error(self._workload, self._objective, n, bands), np.empty((n, bands))
        inside = (np.add.outer(np.arange(n), np.arange(bands)) < n).astype(np.float64)

        def recursive(c: Array) -> tuple[float, Array]:
            value = error(inside * c, _power(self._objective), gradient)
            return value, gradient.sum(axis=0)

        return recursive


def _sums(differences: Array) -> Array:
    return np.cumsum(differences[::-1])[::-1]


@final
class BandedFamily(Family):
    """Banded strategies. A point holds the columns of C, each divided by a fixed factor (see `banded._BandedProblem`).

    For `Curvatures` of the last iterate or of an averaged model, the columns are scaled to norm 1. If their norms were
    free, the optimum would add far too much noise at the beginning of the run. The objective assumes that SGD damps
    this noise until the last step, but a real model would not recover from it.
    """

    def __init__(self, steps: int, workload: Workload, objective: Objective, bands: int) -> None:
        self._equal = isinstance(objective, Curvatures) and objective.counted_steps(steps) < steps
        self._error, self._power = banded_error(workload, objective, steps, bands), _power(objective)
        reach = self._error.reach()
        self._stretch = (1.0 / np.sqrt(reach / reach.max() + bands / steps))[:, None]
        self._shape = steps, bands

    def point(self, columns: Array) -> Array:
        """Return the coordinates of the given columns."""
        return (columns / self._stretch).ravel()

    def strategy(self, point: Array) -> Banded:
        """Return the banded strategy, scaled to a largest column norm of 1."""
        columns = self._columns(point)
        return Banded(columns / math.sqrt(float(np.einsum("jr,jr->j", columns, columns).max())))

    def minimize_tangent(self, point: Array, weights: Array) -> Array:
        """Minimise the tangent by L-BFGS."""
        square = BandedWeightedGram(weights, *self._shape)
        by_error = np.empty(self._shape)

        def function(x: Array, gradient: Array) -> float:
            columns = self._columns(x)
            value = self._error(columns, self._power, by_error)
            if not math.isfinite(value):
                return math.inf
            modes, by_modes = square(columns)
            slope = by_error + 0.5 * by_modes / modes
            if self._equal:  # columns have norm 1, so remove the part of the gradient along each column
                slope = (slope - _row_products(columns, slope) * columns) * self._scales(x)
            gradient[:] = (slope * self._stretch).ravel()
            return value + 0.5 * math.log(modes)

        return lbfgs_minimize(function, point, SearchLimits(iterations=LBFGS_ITERATIONS)).point

    def _columns(self, point: Array) -> Array:
        columns = point.reshape(self._shape) * self._stretch
        return columns * self._scales(point) if self._equal else columns

    def _scales(self, point: Array) -> Array:
        """Return 1 / norm for every column of C before the columns are normalised."""
        columns = point.reshape(self._shape) * self._stretch
        return 1.0 / np.sqrt(_row_products(columns, columns))


def _row_products(a: Array, b: Array) -> Array:
    return np.einsum("jr,jr->j", a, b)[:, None]


@final
class BLTFamily(Family):
    """BLT strategies (buffered linear Toeplitz) with interlaced decays, in the coordinates of `blt_decays`."""

    def __init__(self, steps: int, workload: Workload, objective: Objective) -> None:
        self._steps, self._workload, self._objective = steps, workload, objective
        inverse = workload.toeplitz_inverse
        self._squared_error: SquaredErrorFormula | None = None
        if isinstance(objective, Curvatures):
            self._squared_error = curvatures_formula(workload, objective, steps)
        elif inverse is not None:
            self._squared_error = squared_error_formula(steps, objective, inverse)

    def strategy(self, point: Array) -> Strategy:
        """Return the BLT with these coordinates."""
        return blt_at(point, self._steps)

    def minimize_tangent(self, point: Array, weights: Array) -> Array:
        """Minimise the tangent. Uses Newton's method if the error has a closed form, and L-BFGS otherwise."""
        modes, error = BLTWeightedGram(weights, self._steps), self._squared_error
        if error is None:
            mixture = self._objective if isinstance(self._objective, Curvatures) else None
            function = StepwiseLoss(self._steps, modes, self._workload, _power(self._objective), mixture)
            end = lbfgs_minimize(function, point, SearchLimits(iterations=LBFGS_ITERATIONS), tolerance=1e-8)
            return clipped(end.point[None])[0]

        def batch(points: Array) -> tuple[Array, Array]:
            found = decays(points)
            size, by_error = error(found)
            square, by_square = squared_sensitivity(modes, found)
            gradient = by_error / size[:, None] + by_square / square[:, None]
            return 0.5 * (np.log(size) + np.log(square)), 0.5 * gradient

        return newton_minimize(batch, point[None], clipped, SearchLimits(iterations=NEWTON_ITERATIONS))[0][0]
