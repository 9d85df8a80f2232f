"""BandedInverse: the noise of a step is a short weighted sum of the last rows of z.

Old rows are kept in a ring, or made again from the counter: b draws a step instead of b - 1 buffers.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import MovingSum


@final
class StoredSum(Correlator):
    """sum_r coefficients_r z_{t-r}, oldest first; z_s is kept in row s mod (bands - 1)."""

    recursion: MovingSum
    is_replayed = True

    def state_rows(self) -> int:
        """One less than the bands."""
        return len(self.recursion.coefficients) - 1

    def prepare(self) -> None:
        """Where the history is, oldest first."""
        rows = self.state_rows()
        past = np.arange(max(self.step - rows, 0), self.step)
        self._slots = past % max(rows, 1)
        self._newest = self.step % rows if rows else -1
        self._coefficients = self.recursion.coefficients[len(past) :: -1].copy()

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and put the sum in its place."""
        from antiphase._kernels import moving_sum_step

        white(self.step, out)
        held = self.state[part.strips]
        moving_sum_step(held, self._slots, self._coefficients, self._newest, self.factor, out)

    def replay_from(self, step: int) -> int:
        """Only the rows still in the sum."""
        return max(step - self.state_rows(), 0)


@final
class RegeneratedSum(Correlator):
    """The same sum with every row drawn again when it is needed: no state."""

    recursion: MovingSum
    is_replayed = True

    def state_rows(self) -> int:
        """None."""
        return 0

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw the rows one after another, oldest first, adding up in float64."""
        from antiphase._kernels import add_multiple, write_scaled

        total: Any = scratch.array("total", (part.size,), np.dtype(np.float64))
        total[:] = 0.0
        for lag in range(min(self.step, len(self.recursion.coefficients) - 1), -1, -1):
            white(self.step - lag, out)
            add_multiple(self.recursion.coefficients[lag], out, total)
        write_scaled(self.factor, total, out)

    def replay_from(self, step: int) -> int:
        """Nothing to replay."""
        return step
