"""Ascent on a dual function (see `dual`), by a fixed-point map with Anderson acceleration.

Every iteration gives a strategy, and a proved lower bound on the squared loss of every strategy that the problem
allows. The gap between bound and loss shows how close the strategy is to the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._optimize.solution import SearchLimits

ANDERSON_MEMORY = 8
MAX_EXTRAPOLATION = 5.0  # largest length of an extrapolated step, relative to the plain step (see `ascend`)
MIN_DAMPING = 1e-6  # stop when even this fraction of the plain step fails
MAX_ITERATIONS = 2000
PATIENCE = 200  # stop when the gap between loss and bound has not shrunk by 1 % over this many iterations


@dataclass(frozen=True)
class DualEvaluation:
    """The dual function at one point, with the corresponding primal point X(U) (see `dual`) and the next dual point.

    Args:
        bound: a proved lower bound on the squared loss.
        square: the squared loss of the corresponding primal point.
        state: the dual point, with the multiplier U scaled such that tr(U X(U)) = mass(U).
        successor: the image of the dual point under the fixed-point map (see `multipliers`).
        gram: function that computes the primal point, X = C^T C for a strategy C, and returns it.
    """

    bound: float
    square: float
    state: Array
    successor: Array
    gram: Callable[[], Array]


@dataclass(frozen=True)
class AscentResult:
    """The result of `ascend`.

    Args:
        bound: the largest proved lower bound on the squared loss.
        square: the squared loss of the best primal point.
        state: the last dual point.
        gram: function that computes and returns the best primal point, X = C^T C for a strategy C.
        converged: True if loss and bound agree to the tolerance.
    """

    bound: float
    square: float
    state: Array
    gram: Callable[[], Array]
    converged: bool


def ascend(
    evaluate: Callable[[Array], DualEvaluation | None], start: Array, limits: SearchLimits, tolerance: float
) -> AscentResult:
    """Iterate the fixed-point map until loss and bound agree to a relative `tolerance`.

    The plain step at a point goes to the image of the point under the fixed-point map. The actual steps are
    extrapolated from the last few plain steps (Anderson 1965). Every step must increase the dual function, up to a
    small tolerance. A step that lowers it or leaves its domain is undone, and a fraction of the plain step is tried
    instead.

    Args:
        evaluate: the dual function. It returns None outside its domain.
        start: a point in the domain.
        limits: when to stop early.
        tolerance: stop when sqrt(squared loss / bound) - 1 is at most this.

    Raises `NotProved` if `start` is not in the domain.
    """
    found = evaluate(start)
    if found is None:
        raise NotProved(
            "The dual function is not finite at the starting point of the search.",
            hint="check the workload: all learning rates must be positive",
        )
    ascent = _AscentState(found)
    since, smallest = 0, math.inf
    for iteration in range(MAX_ITERATIONS):
        if ascent.gap < 0.99 * smallest:
            smallest, since = ascent.gap, iteration
        stop = limits.tick(math.sqrt(ascent.best.square))
        if ascent.gap <= tolerance or stop or ascent.damping < MIN_DAMPING or iteration - since > PATIENCE:
            break
        ascent.take(evaluate(ascent.proposal))
    return AscentResult(
        ascent.bound, ascent.best.square, ascent.origin.state, ascent.best.gram, ascent.gap <= tolerance
    )


class _AscentState:
    """The state of the ascent: the last accepted point, the best point so far, and the next point to try."""

    def __init__(self, first: DualEvaluation) -> None:
        self.origin, self.best, self.bound, self.damping = first, first, first.bound, 1.0
        self._history = _AndersonHistory()
        self._accept(first)

    @property
    def gap(self) -> float:
        """The relative gap sqrt(squared loss / bound) - 1, for the smallest loss and the largest bound so far."""
        return math.sqrt(self.best.square / self.bound) - 1.0

    def take(self, found: DualEvaluation | None) -> None:
        """Accept the evaluated proposal, or propose a point closer to the last accepted point."""
        if found is not None and found.bound >= self.origin.bound * (1.0 - 1e-9):
            self._accept(found)
            return
        self.damping /= 2.0
        step = self.origin.successor - self.origin.state
        self._history.restart(self.origin.state, step)
        self.proposal = self.origin.state + self.damping * step

    def _accept(self, found: DualEvaluation) -> None:
        self.origin, self.bound = found, max(self.bound, found.bound)
        if found.square < self.best.square:
            self.best = found
        step = found.successor - found.state
        self._history.add(found.state, step)
        self.proposal = found.state + (self._history.step() if self.damping == 1.0 else self.damping * step)
        self.damping = min(1.0, 2.0 * self.damping)


class _AndersonHistory:
    """The last few points and plain steps, from which Anderson acceleration extrapolates."""

    def __init__(self) -> None:
        self._points: list[Array] = []
        self._steps: list[Array] = []

    def add(self, point: Array, step: Array) -> None:
        """Add a pair of point and step, and drop the oldest pair if the history is full."""
        self._points = [*self._points[-ANDERSON_MEMORY:], point]
        self._steps = [*self._steps[-ANDERSON_MEMORY:], step]

    def restart(self, point: Array, step: Array) -> None:
        """Replace all pairs by the given pair of point and step."""
        self._points, self._steps = [point], [step]

    def step(self) -> Array:
        """Return the step to the fixed point of a linear model of the fixed-point map, limited in length.

        The model interpolates the map at the last few points.
        """
        plain = self._steps[-1]
        if len(self._steps) == 1:
            return plain
        changes = np.diff(self._steps, axis=0).T
        weights = np.linalg.lstsq(changes, plain, rcond=1e-10)[0]
        extrapolated = plain - (np.diff(self._points, axis=0).T + changes) @ weights
        longest = MAX_EXTRAPOLATION * np.abs(plain).max()
        return extrapolated * min(1.0, longest / max(np.abs(extrapolated).max(), 1e-300))
