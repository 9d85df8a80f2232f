"""Newton's method from many starts at once, for functions of a few variables that are cheap in batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._optimize._solution import Limits

Batch = Callable[[Array], tuple[Array, Array]]  # points (batch, size) -> values (batch,), gradients (batch, size)

DIFFERENCE = 1e-5
FIRST_RADIUS, LARGEST_RADIUS, SMALLEST_RADIUS = 1.0, 4.0, 1e-7
MOST_ITERATIONS = 150
PATIENCE, ENOUGH = 15, 1e-9  # stop when the best value falls by less in so many iterations


def minimise(
    function: Batch, starts: Array, clip: Callable[[Array], Array], limits: Limits, tolerance: float = 1e-12
) -> tuple[Array, Array]:
    """Minima near the starts and the values there; log(loss) is what is minimised, `limits` hears of every iteration.

    The Hessian comes from differences of gradients, its eigenvalues are taken by their absolute value, so that saddle
    points repel, and no coordinate moves by more than a radius that shrinks where a step fails.

    Args:
        function: values and gradients of a batch of points.
        starts: shape (batch, size).
        clip: brings points back within their bounds.
        limits: when to stop early.
        tolerance: a start is done when the next step promises less.
    """
    points = clip(starts)
    values, gradients = function(points)
    radius = np.full(len(points), FIRST_RADIUS)
    active = np.isfinite(values)
    history: list[float] = []
    for _ in range(MOST_ITERATIONS):
        chosen = np.flatnonzero(active)
        history.append(float(np.nanmin(values)))
        stuck = len(history) > PATIENCE and history[-1 - PATIENCE] - history[-1] < ENOUGH
        if limits.tick(math.exp(history[-1])) or stuck or len(chosen) == 0:
            break
        steps = _steps(function, points[chosen], gradients[chosen], radius[chosen], clip)
        trial = clip(points[chosen] + steps)
        promised = -np.einsum("si,si->s", trial - points[chosen], gradients[chosen])
        new_values, new_gradients = function(trial)
        better = new_values < values[chosen]
        points[chosen[better]], values[chosen[better]] = trial[better], new_values[better]
        gradients[chosen[better]] = new_gradients[better]
        radius[chosen] = np.where(better, np.minimum(2.0 * radius[chosen], LARGEST_RADIUS), radius[chosen] / 4.0)
        active[chosen] = (promised > tolerance) & (radius[chosen] > SMALLEST_RADIUS)
    return points, values


def _steps(function: Batch, points: Array, gradients: Array, radius: Array, clip: Callable[[Array], Array]) -> Array:
    """Newton steps with the eigenvalues of the Hessian made positive, at most `radius` in every coordinate."""
    count, size = points.shape
    free = _free(points, gradients, clip)
    moved = points[:, None, :] + DIFFERENCE * np.eye(size)
    around = function(moved.reshape(-1, size))[1].reshape(count, size, size)
    hessian = (around - gradients[:, None, :]) / DIFFERENCE
    hessian = np.where(free[:, :, None] & free[:, None, :], (hessian + hessian.swapaxes(1, 2)) / 2.0, np.eye(size))
    finite = np.isfinite(hessian.sum(axis=(1, 2)))
    hessian[~finite] = np.eye(size)
    eigenvalues, vectors = np.linalg.eigh(hessian)
    curvature = np.maximum(np.abs(eigenvalues), 1e-12)
    along = np.einsum("sij,si->sj", vectors, np.where(free, gradients, 0.0)) / curvature
    steps = -np.einsum("sij,sj->si", vectors, along)
    longest = np.maximum(np.abs(steps).max(axis=1), 1e-300)
    return steps * np.minimum(1.0, radius / longest)[:, None]


def _free(
    points: Array, gradients: Array, clip: Callable[[Array], Array]
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Coordinates that a step against the gradient can move."""
    ahead = points - DIFFERENCE * np.sign(gradients)
    return clip(ahead) == ahead
