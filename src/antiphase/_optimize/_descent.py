"""Limited-memory BFGS in place, for functions that are infinite outside their domain.

Trial points may make C^-1 grow without bound over the steps; the value there is infinite and the line search
steps back. Vectors can take hundreds of megabytes, so the pairs are kept in one array and nothing is copied.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._optimize._solution import Limits
from antiphase._optimize._vectors import add_scaled, inner, length

Function = Callable[[Array, Array], float]  # f(x, gradient) fills the gradient and returns the value

LARGEST_MEMORY = 10
MEMORY_BYTES = 1 << 30
FIRST_STEP = 0.01  # length of the first step relative to that of the start
SUFFICIENT = 1e-4
PATIENCE = 5


@dataclass(frozen=True)
class Descent:
    """Where a descent ended: the best point, the value there, and whether no limit stopped it."""

    point: Array
    value: float
    converged: bool


def descend(function: Function, start: Array, limits: Limits, tolerance: float = 1e-11) -> Descent:
    """Minimise log(loss) from `start`; `limits` hears of every iteration.

    Args:
        function: fills its second argument with the gradient at the first and returns the value.
        start: a flat array.
        limits: when to stop early.
        tolerance: converged when the mean decrease of the last few iterations is below it.

    Reference: Liu and Nocedal 1989.
    """
    x, g = start.astype(np.float64), np.empty(len(start))
    value = _value(function, x, g)
    if not math.isfinite(value):
        return Descent(x, value, converged=False)
    pairs = _Pairs(len(x))
    x_new, g_new = np.empty_like(x), np.empty_like(g)
    history = [value]
    while not limits.reached:
        direction = pairs.direction(g)
        slope = inner(g, direction)
        if slope >= -1e-300:
            return Descent(x, value, converged=True)
        step = 1.0 if pairs.count else FIRST_STEP * length(x) / length(g)
        new = _search(function, x, value, direction, slope, step, x_new, g_new)
        if new is None and pairs.count:
            pairs.count = 0
            continue
        if new is None:
            return Descent(x, value, converged=True)
        pairs.add(x, x_new, g, g_new)
        x, x_new, g, g_new, value = x_new, x, g_new, g, new
        history.append(value)
        stop = limits.tick(math.exp(value))
        if len(history) > PATIENCE and history[-1 - PATIENCE] - value <= PATIENCE * tolerance:
            return Descent(x, value, converged=True)
        if stop:
            break
    return Descent(x, value, converged=False)


def _search(
    function: Function, x: Array, value: float, direction: Array, slope: float, step: float, x_new: Array, g_new: Array
) -> float | None:
    """Step back until the value has fallen enough; None if it does not, which is rounding."""
    for _ in range(30):
        np.multiply(direction, step, out=x_new)
        x_new += x
        new = _value(function, x_new, g_new)
        if new <= value + SUFFICIENT * step * slope:
            return new
        if math.isfinite(new):
            step *= min(0.5, max(0.1, -slope * step / (2.0 * (new - value - slope * step))))
        else:
            step *= 0.2
    return None


def _value(function: Function, x: Array, gradient: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return function(x, gradient)


class _Pairs:
    """The last few differences of points s and of gradients y, which stand for the inverse Hessian."""

    def __init__(self, size: int) -> None:
        self._capacity = int(min(LARGEST_MEMORY, max(3, MEMORY_BYTES // (16 * size))))
        self._s = np.empty((self._capacity, size))
        self._y = np.empty((self._capacity, size))
        self._curvature = np.empty(self._capacity)
        self.count = 0
        self._next = 0

    def add(self, x: Array, x_new: Array, g: Array, g_new: Array) -> None:
        """Keep the pair in the place of the oldest, unless the curvature along it is not positive."""
        s, y = self._s[self._next], self._y[self._next]
        np.subtract(x_new, x, out=s)
        np.subtract(g_new, g, out=y)
        curvature = inner(s, y)
        if curvature > 1e-12 * length(s) * length(y):
            self._curvature[self._next] = curvature
            self._next = (self._next + 1) % self._capacity
            self.count = min(self.count + 1, self._capacity)

    def direction(self, g: Array) -> Array:
        """- (inverse Hessian) g by the two-loop recursion."""
        d = -g
        newest_first = [(self._next - 1 - i) % self._capacity for i in range(self.count)]
        weights = []
        for i in newest_first:
            weights.append(inner(self._s[i], d) / self._curvature[i])
            add_scaled(d, -weights[-1], self._y[i])
        if newest_first:
            y = self._y[newest_first[0]]
            d *= self._curvature[newest_first[0]] / inner(y, y)
        for i, weight in zip(reversed(newest_first), reversed(weights), strict=True):
            add_scaled(d, weight - inner(self._y[i], d) / self._curvature[i], self._s[i])
        return d
