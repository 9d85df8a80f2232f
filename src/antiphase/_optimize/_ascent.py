"""Accelerated fixed-point ascent on a dual function, with a certified gap at every iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._optimize._solution import Limits

MEMORY = 8
LONGEST = 5.0  # an extrapolated step is at most this many times as long as the plain one
SMALLEST = 1e-6  # a plain step damped beyond this is given up
MOST_ITERATIONS = 2000
PATIENCE = 200  # iterations without a gap smaller by a hundredth


@dataclass(frozen=True)
class Evaluation:
    """What is known at one dual point.

    Args:
        bound: a proved lower bound on the squared loss.
        square: the squared loss of the primal point that belongs to it.
        state: the dual point, normalised.
        successor: its image under the fixed-point map.
        gram: makes the primal point, X.
    """

    bound: float
    square: float
    state: Array
    successor: Array
    gram: Callable[[], Array]


@dataclass(frozen=True)
class Ascent:
    """The best bound and the best primal point met, and the last dual point."""

    bound: float
    square: float
    state: Array
    gram: Callable[[], Array]
    converged: bool


def ascend(evaluate: Callable[[Array], Evaluation | None], start: Array, limits: Limits, tolerance: float) -> Ascent:
    """Iterate the fixed-point map until loss and bound agree to `tolerance`, relative to the loss.

    Steps are extrapolated from the last few (Anderson 1965). The dual function is concave, so a step that lowers it,
    or leaves its domain, is taken back and replaced by a damped plain step.

    Args:
        evaluate: the dual function; None outside its domain.
        start: a point of the domain.
        limits: when to stop early.
        tolerance: largest loss / bound - 1.
    """
    found = evaluate(start)
    if found is None:
        raise NotProved(
            "The dual of this problem is not finite.", hint="check the workload: all rates must be positive"
        )
    climb = _Climb(found)
    since, smallest = 0, math.inf
    for iteration in range(MOST_ITERATIONS):
        if climb.gap < 0.99 * smallest:
            smallest, since = climb.gap, iteration
        stop = limits.tick(math.sqrt(climb.best.square))
        if climb.gap <= tolerance or stop or climb.damping < SMALLEST or iteration - since > PATIENCE:
            break
        climb.take(evaluate(climb.proposal))
    return Ascent(climb.bound, climb.best.square, climb.origin.state, climb.best.gram, climb.gap <= tolerance)


class _Climb:
    """The last point accepted, the best met, and the next to try."""

    def __init__(self, first: Evaluation) -> None:
        self.origin, self.best, self.bound, self.damping = first, first, first.bound, 1.0
        self._history = _History()
        self._accept(first)

    @property
    def gap(self) -> float:
        """Loss / bound - 1 of the best."""
        return math.sqrt(self.best.square / self.bound) - 1.0

    def take(self, found: Evaluation | None) -> None:
        """Accept the point tried, or step back towards the last one."""
        if found is not None and found.bound >= self.origin.bound * (1.0 - 1e-9):
            self._accept(found)
            return
        self.damping /= 2.0
        step = self.origin.successor - self.origin.state
        self._history.restart(self.origin.state, step)
        self.proposal = self.origin.state + self.damping * step

    def _accept(self, found: Evaluation) -> None:
        self.origin, self.bound = found, max(self.bound, found.bound)
        if found.square < self.best.square:
            self.best = found
        step = found.successor - found.state
        self._history.add(found.state, step)
        self.proposal = found.state + (self._history.step() if self.damping == 1.0 else self.damping * step)
        self.damping = min(1.0, 2.0 * self.damping)


class _History:
    """The last points and plain steps, and the step extrapolated from them."""

    def __init__(self) -> None:
        self._points: list[Array] = []
        self._steps: list[Array] = []

    def add(self, point: Array, step: Array) -> None:
        """Keep a pair, forget the oldest."""
        self._points = [*self._points[-MEMORY:], point]
        self._steps = [*self._steps[-MEMORY:], step]

    def restart(self, point: Array, step: Array) -> None:
        """Forget all pairs but one."""
        self._points, self._steps = [point], [step]

    def step(self) -> Array:
        """The plain step less what a linear model of the map explains of it."""
        plain = self._steps[-1]
        if len(self._steps) == 1:
            return plain
        changes = np.diff(self._steps, axis=0).T
        weights = np.linalg.lstsq(changes, plain, rcond=1e-10)[0]
        extrapolated = plain - (np.diff(self._points, axis=0).T + changes) @ weights
        longest = LONGEST * np.abs(plain).max()
        return extrapolated * min(1.0, longest / max(np.abs(extrapolated).max(), 1e-300))
