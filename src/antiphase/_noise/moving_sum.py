"""Moving-sum correlators for BandedInverse: the noise of a step is a weighted sum of the last rows of white noise z.

Let b be the number of bands of C^-1. The last b - 1 rows of z are either stored in a ring buffer of b - 1 rows, or
drawn again in every step. In the second case, each step draws b rows of z.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import MovingSum


@final
class StoredSum(Correlator):
    """Computes sum_r coefficients_r z_{t-r}, oldest term first. Row s mod (bands - 1) of the state stores z_s."""

    recursion: MovingSum
    is_replayed = True

    def state_rows(self) -> int:
        """Return the number of bands minus one."""
        return len(self.recursion.coefficients) - 1

    def prepare(self) -> None:
        """Find the rows of the state that hold the past rows of z, oldest first."""
        rows = self.state_rows()
        past = np.arange(max(self.step - rows, 0), self.step)
        self._slots = past % max(rows, 1)
        self._newest = self.step % rows if rows else -1
        self._coefficients = self.recursion.coefficients[len(past) :: -1].copy()

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and replace it by the sum."""
        from antiphase._kernels import moving_sum_step

        white(self.step, out)
        held = self.state[part.strips]
        moving_sum_step(held, self._slots, self._coefficients, self._newest, self.factor, out)

    def replay_from(self, step: int) -> int:
        """Return the first step whose z is part of the sum at `step`."""
        return max(step - self.state_rows(), 0)


@final
class RegeneratedSum(Correlator):
    """Computes the same noise as `StoredSum` without state. Each step draws every row of z that it needs again."""

    recursion: MovingSum
    is_replayed = True

    def state_rows(self) -> int:
        """Return 0, because there is no state."""
        return 0

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw the rows one after another, oldest first, and add them up in float64."""
        from antiphase._kernels import add_multiple, write_scaled

        total: Any = scratch.array("total", (part.size,), np.dtype(np.float64))
        total[:] = 0.0
        for lag in range(min(self.step, len(self.recursion.coefficients) - 1), -1, -1):
            white(self.step - lag, out)
            add_multiple(self.recursion.coefficients[lag], out, total)
        write_scaled(self.factor, total, out)

    def replay_from(self, step: int) -> int:
        """Return `step`, because there is no state to replay."""
        return step
