"""L-BFGS in preallocated arrays, for functions that are infinite outside their domain.

The functions to minimise are losses of strategy matrices C. At some trial points, the entries of C^-1 grow without
bound over the steps. The function is infinite there, and the line search tries a shorter step. A vector can take
hundreds of megabytes, so all work is done in preallocated arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._optimize.linear_algebra import add_scaled, inner, norm
from antiphase._optimize.solution import SearchLimits

ValueAndGradient = Callable[[Array, Array], float]  # f(x, gradient) fills the gradient and returns the value

MAX_PAIRS = 10  # largest number of stored pairs (see `_CurvaturePairs`)
MAX_PAIR_BYTES = 1 << 30  # largest memory for all pairs; at least 3 pairs are stored
FIRST_STEP = 0.01  # norm of the first step relative to the norm of the starting point
SUFFICIENT_DECREASE = 1e-4  # the Armijo constant
PATIENCE = 5  # iterations over which the decrease is averaged


@dataclass(frozen=True)
class LBFGSResult:
    """The result of `lbfgs_minimize`.

    Args:
        point: the best point.
        value: the function value at `point`.
        converged: False if a limit stopped the search, or if the value at the start is infinite.
    """

    point: Array
    value: float
    converged: bool


def lbfgs_minimize(
    function: ValueAndGradient, start: Array, limits: SearchLimits, tolerance: float = 1e-11
) -> LBFGSResult:
    """Minimise log(loss), given by `function`, from `start`.

    Args:
        function: function of (point, gradient) that returns log(loss) at the point and writes its gradient into
            `gradient`.
        start: starting point, a flat array.
        limits: when to stop early. After every iteration, `limits` is given the loss.
        tolerance: stop when log(loss) decreases by at most this per iteration, averaged over the last few iterations.

    Reference: Liu and Nocedal 1989.
    """
    x, g = start.astype(np.float64), np.empty(len(start))
    value = _value(function, x, g)
    if not math.isfinite(value):
        return LBFGSResult(x, value, converged=False)
    pairs = _CurvaturePairs(len(x))
    x_new, g_new = np.empty_like(x), np.empty_like(g)
    history = [value]
    while not limits.reached:
        direction = pairs.direction(g)
        slope = inner(g, direction)
        if slope >= -1e-300:
            return LBFGSResult(x, value, converged=True)
        step = 1.0 if pairs.count else FIRST_STEP * norm(x) / norm(g)
        new = _line_search(function, x, value, direction, slope, step, x_new, g_new)
        if new is None and pairs.count:
            pairs.count = 0
            continue
        if new is None:
            return LBFGSResult(x, value, converged=True)
        pairs.add(x, x_new, g, g_new)
        x, x_new, g, g_new, value = x_new, x, g_new, g, new
        history.append(value)
        stop = limits.tick(math.exp(value))
        if len(history) > PATIENCE and history[-1 - PATIENCE] - value <= PATIENCE * tolerance:
            return LBFGSResult(x, value, converged=True)
        if stop:
            break
    return LBFGSResult(x, value, converged=False)


def _line_search(
    function: ValueAndGradient,
    x: Array,
    value: float,
    direction: Array,
    slope: float,
    step: float,
    x_new: Array,
    g_new: Array,
) -> float | None:
    """Shorten the step until the value decreases enough. Returns the new value, or None if 30 trials fail."""
    for _ in range(30):
        np.multiply(direction, step, out=x_new)
        x_new += x
        new = _value(function, x_new, g_new)
        if new <= value + SUFFICIENT_DECREASE * step * slope:
            return new
        if math.isfinite(new):
            step *= min(0.5, max(0.1, -slope * step / (2.0 * (new - value - slope * step))))
        else:
            step *= 0.2
    return None


def _value(function: ValueAndGradient, x: Array, gradient: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return function(x, gradient)


class _CurvaturePairs:
    """Pairs of differences from the last few iterations, which give an approximation of the inverse Hessian.

    In each pair, s is the difference of two successive points, and y is the difference of their gradients. The inner
    product of s and y is the curvature along s.
    """

    def __init__(self, size: int) -> None:
        self._capacity = int(min(MAX_PAIRS, max(3, MAX_PAIR_BYTES // (16 * size))))
        self._s = np.empty((self._capacity, size))
        self._y = np.empty((self._capacity, size))
        self._curvature = np.empty(self._capacity)
        self.count = 0
        self._next = 0

    def add(self, x: Array, x_new: Array, g: Array, g_new: Array) -> None:
        """Compute a new pair and store it if its curvature is positive. If the store is full, the oldest is lost."""
        s, y = self._s[self._next], self._y[self._next]
        np.subtract(x_new, x, out=s)
        np.subtract(g_new, g, out=y)
        curvature = inner(s, y)
        if curvature > 1e-12 * norm(s) * norm(y):
            self._curvature[self._next] = curvature
            self._next = (self._next + 1) % self._capacity
            self.count = min(self.count + 1, self._capacity)
        else:
            self.count = min(self.count, self._capacity - 1)  # if there was no room, the oldest pair is overwritten

    def direction(self, g: Array) -> Array:
        """Return minus the approximate inverse Hessian times g, by the two-loop recursion."""
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
