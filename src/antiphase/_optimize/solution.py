"""The result of an optimisation, and the limits that can stop it early."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphase.strategies import Strategy

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Solution:
    """The best strategy found in a family.

    **Guarantee**: `loss` is the true loss (sensitivity x error) of `strategy`, as computed by `antiphase.loss`.
    `lower_bound`, if given, is proved: no strategy that the optimiser's problem allows has a smaller loss.

    Args:
        strategy: the best strategy found.
        loss: sensitivity x error of the strategy under the requested objective; noise_std x error if `optimize` was
            given a budget.
        lower_bound: a proved lower bound on the loss, or None.
        iterations: number of iterations of the optimiser.
        seconds: wall-clock time.
        converged: False if a limit stopped the search.
    """

    strategy: Strategy
    loss: float
    lower_bound: float | None
    iterations: int
    seconds: float
    converged: bool


@dataclass
class SearchLimits:
    """Limits that stop a search early. The search then returns the best strategy so far, with `converged=False`.

    Args:
        seconds: wall-clock limit, or None.
        iterations: iteration limit, or None.
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
        """Seconds since the start."""
        return time.perf_counter() - self.started

    def tick(self, loss: float) -> bool:
        """Count one iteration, report it, and return whether to stop."""
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, loss)
        return self.reached

    @property
    def reached(self) -> bool:
        """Whether a limit has been reached."""
        late = self.seconds is not None and self.elapsed >= self.seconds
        return late or (self.iterations is not None and self.count >= self.iterations)
