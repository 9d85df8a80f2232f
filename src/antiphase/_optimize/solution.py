"""The result of an optimisation, and the limits that can stop it early."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphase.strategies import Strategy

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Solution:
    """The result of `optimize`: the best strategy found in a family.

    **Guarantee**: without a budget, `loss` equals `antiphase.loss(strategy, ...)`, up to rounding. `lower_bound`, if
    not None, is proved: among all strategies that the optimiser was allowed to choose, none has a loss below
    `lower_bound`.

    Args:
        strategy: the best strategy found.
        loss: sensitivity x error of the strategy under the requested objective. If `optimize` was given a budget,
            noise_std x error.
        lower_bound: a proved lower bound on the loss, or None if the optimiser computes none.
        iterations: number of iterations of the optimiser.
        seconds: wall-clock time of the search.
        converged: False if a limit stopped the search, or if the loss is not as close to the lower bound as requested.
    """

    strategy: Strategy
    loss: float
    lower_bound: float | None
    iterations: int
    seconds: float
    converged: bool


@dataclass
class SearchLimits:
    """Limits that stop a search early, and the number of iterations so far.

    If a limit stops a search, the search returns the best strategy so far, with `converged=False`.

    Args:
        seconds: largest wall-clock time in seconds, or None for no limit.
        iterations: largest number of iterations, or None for no limit.
        progress: called as progress(iteration, loss) after every iteration.
        started: time at which the search started, from `time.perf_counter`.
        count: number of iterations so far.
    """

    seconds: float | None = None
    iterations: int | None = None
    progress: Progress | None = None
    started: float = field(default_factory=time.perf_counter)
    count: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the search started."""
        return time.perf_counter() - self.started

    def tick(self, loss: float) -> bool:
        """Count one iteration, pass its loss to `progress`, and return True if a limit has been reached."""
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, loss)
        return self.reached

    @property
    def reached(self) -> bool:
        """True if a limit has been reached."""
        late = self.seconds is not None and self.elapsed >= self.seconds
        return late or (self.iterations is not None and self.count >= self.iterations)
