"""Lower-triangular C: the noise of a step is z less what C carries over from the last outputs.

    y_t = (z_t - sum_{s < t} C[t, s] y_s) / C[t, t]

The last bands - 1 outputs are kept in a ring, y_s in row s mod rows. Noise does not depend on data, so `lookahead`
steps are made at once, and the ring is read once for all of them. They overwrite the outputs that nobody needs
any more: as long as lookahead < bands this costs no memory.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise._correlator import LANES, PART, Correlator, Noise, Part, Scratch, White, padded
from antiphase._noise._entries import Triangular, bands_of, reader

LOOKAHEAD = 8  # more gains little for few bands, and makes some steps longer still
LOOKAHEAD_LONG = 32  # for long histories, where reading them is most of the work
LONG = 256
SMALLEST_PART = 1 << 13  # calls for each row of z take their time too
DOUBLE = np.dtype(np.float64)


@final
class Feedback(Correlator):
    """Forward substitution with a ring of past outputs, some steps at once."""

    strategy: Triangular

    def __init__(
        self, strategy: Triangular, factor: float, entries: int, dtype: np.dtype[Any], lookahead: int | None
    ) -> None:
        self._history = bands_of(strategy) - 1
        default = min(LOOKAHEAD_LONG if self._history > LONG else LOOKAHEAD, max(self._history, 1))
        self._lookahead = default if lookahead is None else lookahead
        self._made = 0
        self._entries = reader(strategy)
        self.part = max(2 * PART // self._lookahead // LANES * LANES, SMALLEST_PART)
        super().__init__(strategy, factor, entries, dtype)

    def state_rows(self) -> int:
        """The history, or the steps made at once if they are more."""
        return max(self._history, self._lookahead)

    @property
    def made(self) -> int:
        """Steps whose outputs are in the ring."""
        return self._made

    @made.setter
    def made(self, steps: int) -> None:
        self._made = steps

    def begin(self, step: int) -> None:
        """Prepare a block of steps where none is left from the last one."""
        self._step = step
        self._steps = min(self._lookahead, self.strategy.steps - step) if step >= self._made else 0
        if self._steps:
            now = np.arange(step, step + self._steps)
            past = np.arange(max(step - self._history, 0), step)
            rows = self.state_rows()
            self._slots, self._new = past % rows, now % rows
            inside = self._entries(now, now)
            self._past, self._inside = padded(-self._entries(now, past), 2, 4), -inside
            self._pivot = 1.0 / np.diag(inside)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Make the block if it is time, then hand out the step."""
        from antiphase._kernels import correlate

        held = self.state[part.strips]
        if self._steps:
            z = scratch.array("z", (self._steps, part.size), self.dtype)
            for k in range(self._steps):
                white(self._step + k, z[k])
            total = scratch.array("total", (len(self._past) * LANES,), DOUBLE)
            correlate.feedback(held, z, self._slots, self._past, self._inside, self._pivot, self._new, total)
        correlate.read_row(held, self._step % self.state_rows(), self.factor, out)

    def end(self) -> None:
        """The block counts as made when every part has made it."""
        self._made = max(self._made, self._step + self._steps)

    def reset(self) -> None:
        """Back to before the first step."""
        super().reset()
        self._made = 0
