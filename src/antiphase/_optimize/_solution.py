"""What an optimiser returns, and the limits it obeys."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphase.strategies import Strategy

Progress = Callable[[int, float], None]


@dataclass(frozen=True)
class Solution:
    """The best strategy found in a family.

    **Guarantee**: `loss` is the true loss (sensitivity x error) of `strategy`, computed by `antiphase.loss`;
    `lower_bound`, where given, is proved: no strategy of the stated problem has a smaller loss.

    Args:
        strategy: the best found.
        loss: sensitivity x error under the objective asked for.
        lower_bound: a proved lower bound on the loss, or None.
        iterations: how many the optimiser took.
        seconds: wall-clock time.
        converged: False where a limit stopped the search.
    """

    strategy: Strategy
    loss: float
    lower_bound: float | None
    iterations: int
    seconds: float
    converged: bool


@dataclass
class Limits:
    """When to stop early; the best so far is then returned with `converged=False`.

    Args:
        seconds: wall-clock limit, or None.
        iterations: iteration limit, or None.
        progress: called as progress(iteration, loss) after every iteration.
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
        """Count one iteration, report it, and say whether to stop."""
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, loss)
        return self.reached

    @property
    def reached(self) -> bool:
        """Whether a limit has been reached."""
        late = self.seconds is not None and self.elapsed >= self.seconds
        return late or (self.iterations is not None and self.count >= self.iterations)
