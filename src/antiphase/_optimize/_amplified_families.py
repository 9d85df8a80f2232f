"""Families whose error and modes have gradients: what the search under amplification needs of each.

Each minimises log error + log <H, G> / 2 for fixed weights H, the tangent of the true objective at the current point.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase._loss import Objective
from antiphase._optimize._banded import _column_squares
from antiphase._optimize._blt import _strategy as blt_strategy
from antiphase._optimize._blt_loss import ResponseSquare, StepwiseLoss, squared_sensitivity
from antiphase._optimize._decays import clipped, decays
from antiphase._optimize._descent import descend
from antiphase._optimize._doubling import DoublingSquare
from antiphase._optimize._mode_square import BandedModes, BLTModes, ToeplitzModes
from antiphase._optimize._newton import minimise
from antiphase._optimize._objective import BandedError
from antiphase._optimize._response import response_square
from antiphase._optimize._schema import Schema
from antiphase._optimize._solution import Limits
from antiphase._workload import Workload
from antiphase.strategies import Banded, Strategy, Toeplitz

POWER: dict[Objective, float] = {"rms": 1.0, "max": 64.0}
INNER = 40  # quasi-Newton iterations for one set of weights
NEWTON = 4
TAIL = 1e-4


class Family(ABC):
    """A set of strategies with coordinates."""

    @abstractmethod
    def strategy(self, point: Array) -> Strategy:
        """C at a point."""

    @abstractmethod
    def minimise(self, point: Array, weights: Array) -> Array:
        """Where log error + log <weights, G> / 2 is smaller than at `point`, by a few iterations."""


@final
class ToeplitzFamily(Family):
    """Coefficients of a Toeplitz C that are non-negative and do not increase; a point is their differences.

    All roots of such a c(x) lie outside the open unit disc (Enestrom, Kakeya), so that every point has a finite error.
    """

    def __init__(self, steps: int, workload: Workload, objective: Objective, iterations: int = INNER) -> None:
        self._steps, self._workload, self._objective = steps, workload, objective
        self._iterations = iterations

    def point(self, coefficients: Array, bands: int) -> Array:
        """The coordinates of given coefficients, made decreasing, with a small tail that the search can build on."""
        c = np.zeros(bands)
        c[: len(coefficients)] = np.minimum.accumulate(np.maximum(coefficients, 0.0))
        c += TAIL * c[0] / np.arange(1, bands + 1)
        return -np.diff(c, append=0.0)

    def strategy(self, point: Array) -> Toeplitz:
        """Of norm 1, without trailing zeros."""
        c = np.trim_zeros(_sums(point), "b")
        return Toeplitz(c / math.sqrt(float(c @ c)), self._steps)

    def minimise(self, point: Array, weights: Array) -> Array:
        """By quasi-Newton steps within the bounds."""
        from scipy.optimize import Bounds, minimize

        square, error = ToeplitzModes(weights, self._steps), self._error(len(point))

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
        """log error of coefficients, with its gradient."""
        n, inverse, weighted = self._steps, self._workload.toeplitz_inverse, self._objective == "rms"
        if inverse is not None:

            def closed(c: Array) -> tuple[float, Array]:
                size, gradient = response_square(c, inverse, n, weighted)
                return 0.5 * math.log(size), 0.5 * gradient / size

            return closed
        error, gradient = BandedError(self._workload, n, bands), np.empty((n, bands))
        inside = (np.add.outer(np.arange(n), np.arange(bands)) < n).astype(np.float64)

        def recursive(c: Array) -> tuple[float, Array]:
            value = error(inside * c, POWER[self._objective], gradient)
            return value, gradient.sum(axis=0)

        return recursive


def _sums(differences: Array) -> Array:
    return np.cumsum(differences[::-1])[::-1]


@final
class BandedFamily(Family):
    """Columns of a banded C, each on its own; a point is columns / stretch, as in `_banded`."""

    def __init__(self, steps: int, workload: Workload, objective: Objective, bands: int) -> None:
        self._error, self._power = BandedError(workload, steps, bands), POWER[objective]
        reach = _column_squares(self._error.inverse)
        self._stretch = (1.0 / np.sqrt(reach / reach.max() + bands / steps))[:, None]
        self._shape = steps, bands

    def point(self, columns: Array) -> Array:
        """The coordinates of given columns."""
        return (columns / self._stretch).ravel()

    def strategy(self, point: Array) -> Banded:
        """The largest column has norm 1."""
        columns = self._columns(point)
        return Banded(columns / math.sqrt(float(np.einsum("jr,jr->j", columns, columns).max())))

    def minimise(self, point: Array, weights: Array) -> Array:
        """By quasi-Newton steps."""
        square = BandedModes(weights, *self._shape)
        by_error = np.empty(self._shape)

        def function(x: Array, gradient: Array) -> float:
            columns = self._columns(x)
            value = self._error(columns, self._power, by_error)
            if not math.isfinite(value):
                return math.inf
            modes, by_modes = square(columns)
            gradient[:] = ((by_error + 0.5 * by_modes / modes) * self._stretch).ravel()
            return value + 0.5 * math.log(modes)

        return descend(function, point, Limits(iterations=INNER)).point

    def _columns(self, point: Array) -> Array:
        return point.reshape(self._shape) * self._stretch


@final
class BLTFamily(Family):
    """Interlaced decays of a BLT, as in `_decays`."""

    def __init__(self, steps: int, workload: Workload, objective: Objective) -> None:
        self._steps, self._workload, self._objective = steps, workload, objective

    def strategy(self, point: Array) -> Strategy:
        """The BLT."""
        return blt_strategy(point, self._steps)

    def minimise(self, point: Array, weights: Array) -> Array:
        """By Newton steps where the error is closed, else by quasi-Newton steps."""
        modes, inverse = BLTModes(weights, self._steps), self._workload.toeplitz_inverse
        if inverse is None:
            function = StepwiseLoss(self._steps, Schema(self._steps, 1), self._workload, POWER[self._objective])
            function._square = modes  # type: ignore[assignment]  # the modes take the place of one pattern
            end = descend(function, point, Limits(iterations=INNER), tolerance=1e-8)
            return clipped(end.point[None])[0]
        prefix = len(inverse) == 2 and inverse.sum() == 0.0
        error = ResponseSquare(self._steps, self._objective)
        doubling = error if prefix else DoublingSquare(self._steps, self._objective, inverse)

        def batch(points: Array) -> tuple[Array, Array]:
            found = decays(points)
            size, by_error = doubling(found)
            square, by_square = squared_sensitivity(modes, found)  # type: ignore[arg-type]
            gradient = by_error / size[:, None] + by_square / square[:, None]
            return 0.5 * (np.log(size) + np.log(square)), 0.5 * gradient

        return minimise(batch, point[None], clipped, Limits(iterations=NEWTON))[0][0]
