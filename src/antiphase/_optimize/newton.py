"""Newton's method from many starting points at once, for functions of a few variables that are evaluated in batches."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._optimize.solution import SearchLimits

# points of shape (batch, size) -> values of shape (batch,) and gradients of shape (batch, size)
BatchedValueAndGradient = Callable[[Array], tuple[Array, Array]]

FINITE_DIFFERENCE = 1e-5  # step of the finite differences of the gradients
FIRST_RADIUS, MAX_RADIUS, MIN_RADIUS = 1.0, 4.0, 1e-7
MAX_ITERATIONS = 150
PATIENCE, MIN_DECREASE = 15, 1e-9  # stop if the best value decreases by less than MIN_DECREASE in PATIENCE iterations


def newton_minimize(
    function: BatchedValueAndGradient,
    starts: Array,
    clip: Callable[[Array], Array],
    limits: SearchLimits,
    tolerance: float = 1e-12,
) -> tuple[Array, Array]:
    """Minimise `function` from every starting point, and return the final points and their values.

    Hessians are computed as finite differences of gradients. Newton steps use the absolute values of the eigenvalues,
    so that they move away from saddle points. In each step, no coordinate moves by more than a radius. The radius
    shrinks if the step does not lower the value, and grows otherwise. After every iteration, `limits` is given the
    smallest loss, which is exp(value).

    Args:
        function: the function to minimise, log(loss). It returns the values and gradients for a batch of points.
        starts: the starting points, of shape (batch, size).
        clip: function that moves points back within their bounds.
        limits: when to stop early.
        tolerance: the search from a starting point stops when the gradient predicts that a step lowers the value by at
            most this.
    """
    points = clip(starts)
    values, gradients = function(points)
    radius = np.full(len(points), FIRST_RADIUS)
    active = np.isfinite(values)
    history: list[float] = []
    for _ in range(MAX_ITERATIONS):
        chosen = np.flatnonzero(active)
        history.append(float(np.nanmin(values)))
        stuck = len(history) > PATIENCE and history[-1 - PATIENCE] - history[-1] < MIN_DECREASE
        if limits.tick(math.exp(history[-1])) or stuck or len(chosen) == 0:
            break
        steps = _steps(function, points[chosen], gradients[chosen], radius[chosen], clip)
        trial = clip(points[chosen] + steps)
        promised = -np.einsum("si,si->s", trial - points[chosen], gradients[chosen])
        new_values, new_gradients = function(trial)
        better = new_values < values[chosen]
        points[chosen[better]], values[chosen[better]] = trial[better], new_values[better]
        gradients[chosen[better]] = new_gradients[better]
        radius[chosen] = np.where(better, np.minimum(2.0 * radius[chosen], MAX_RADIUS), radius[chosen] / 4.0)
        active[chosen] = (promised > tolerance) & (radius[chosen] > MIN_RADIUS)
    return points, values


def _steps(
    function: BatchedValueAndGradient,
    points: Array,
    gradients: Array,
    radius: Array,
    clip: Callable[[Array], Array],
) -> Array:
    """Return Newton steps that use the absolute eigenvalues of the Hessian, and change no coordinate by over `radius`.

    If a Hessian is not finite, the step goes against the gradient.
    """
    count, size = points.shape
    free = _free(points, gradients, clip)
    moved = points[:, None, :] + FINITE_DIFFERENCE * np.eye(size)
    around = function(moved.reshape(-1, size))[1].reshape(count, size, size)
    hessian = (around - gradients[:, None, :]) / FINITE_DIFFERENCE
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
    """Return an array that is True for the coordinates that can move against the gradient within the bounds."""
    ahead = points - FINITE_DIFFERENCE * np.sign(gradients)
    return clip(ahead) == ahead
