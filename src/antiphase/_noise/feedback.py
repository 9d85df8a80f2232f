"""Feedback: the noise of a step is z minus what C carries over from past outputs, or from buffers that sum them.

    y_t = (z_t - sum_{s < t} C[t, s] y_s) / C[t, t]

The last bands - 1 outputs are kept in a ring, y_s in row s mod rows. Noise does not depend on data, so `lookahead`
steps are made at once, and the ring is read once for all of them. They overwrite the outputs that nobody needs
any more: as long as lookahead < bands this costs no memory.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import LANES, Correlator, Noise, Part, Scratch, White, padded, part_for
from antiphase.strategies import Buffers, Feedback

LOOKAHEAD = 8  # more gains little for few bands, and makes some steps longer still
LOOKAHEAD_LONG = 32  # for long histories, where reading them is most of the work
LONG = 256
DOUBLE = np.dtype(np.float64)


@final
class FeedbackCorrelator(Correlator):
    """Forward substitution with a ring of past outputs, some steps at once."""

    recursion: Feedback

    def __init__(
        self, recursion: Feedback, factor: float, entries: int, dtype: np.dtype[Any], lookahead: int | None
    ) -> None:
        self._history = recursion.bands - 1
        default = min(LOOKAHEAD_LONG if self._history > LONG else LOOKAHEAD, max(self._history, 1))
        self.lookahead = default if lookahead is None else lookahead
        self.part = part_for(self.lookahead)
        super().__init__(recursion, factor, entries, dtype)

    def state_rows(self) -> int:
        """The history, or the steps made at once if they are more."""
        return max(self._history, self.lookahead)

    def prepare(self) -> None:
        """The entries of C that a block of steps needs."""
        if self.fresh:
            now = np.arange(self.step, self.step + self.fresh)
            past = np.arange(max(self.step - self._history, 0), self.step)
            rows = self.state_rows()
            self._slots, self._new = past % rows, now % rows
            inside = self.recursion.block(now, now)
            self._past, self._inside = padded(-self.recursion.block(now, past), 2, 4), -inside
            self._pivot = 1.0 / np.diag(inside)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Make the block if it is time, then hand out the step."""
        from antiphase._kernels import feedback_steps, read_row

        held = self.state[part.strips]
        if self.fresh:
            z = scratch.array("z", (self.fresh, part.size), self.dtype)
            for k in range(self.fresh):
                white(self.step + k, z[k])
            total = scratch.array("total", (len(self._past) * LANES,), DOUBLE)
            feedback_steps(held, z, self._slots, self._past, self._inside, self._pivot, self._new, total)
        read_row(held, self.step % self.state_rows(), self.factor, out)


@final
class IndependentCorrelator(Correlator):
    """z_t / C[t, t], no state."""

    recursion: Feedback
    is_replayed = True

    def state_rows(self) -> int:
        """None."""
        return 0

    def prepare(self) -> None:
        """The step's multiple."""
        self._factor = self.factor / float(self.recursion.row(self.step)[0])

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw and scale."""
        from antiphase._kernels import scale_noise

        white(self.step, out)
        scale_noise(self._factor, out)

    def replay_from(self, step: int) -> int:
        """Nothing to replay."""
        return step


@final
class BuffersCorrelator(Correlator):
    """y = z - scale . b, then b <- b + (y - loss b), as `Buffers.constants` explains."""

    recursion: Buffers

    def __init__(self, recursion: Buffers, factor: float, entries: int, dtype: np.dtype[Any]) -> None:
        scale, loss = recursion.constants(dtype.name)
        self._weight, self._loss = tuple(scale.astype(dtype)), tuple(loss.astype(dtype))
        super().__init__(recursion, factor, entries, dtype)

    def state_rows(self) -> int:
        """One for each decay."""
        return len(self.recursion.decay)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and put the step's noise in its place."""
        from antiphase._kernels import buffers_step

        white(self.step, out)
        factor = self.dtype.type(self.factor)
        buffers_step(self.state[part.strips], self._loss, self._weight, factor, out)
