"""Feedback correlators: the noise of a step is white noise z minus a weighted sum of past outputs.

    y_t = (z_t - sum_{s < t} C[t, s] y_s) / C[t, t]

The last bands - 1 outputs are stored in a ring buffer, with y_s in row s modulo the number of rows. (For a BLT, a few
buffers of weighted sums of past outputs are stored instead.) Noise does not depend on the data, so `lookahead` steps
can be computed at once, and the ring buffer is read only once for all these steps. New outputs overwrite outputs that
are no longer needed. Looking ahead therefore takes no extra memory as long as lookahead < bands.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import LANES, Correlator, Noise, Part, Scratch, White, padded, part_for
from antiphase.strategies import Buffers, Feedback

LOOKAHEAD = 8  # with few bands, a larger lookahead saves little time and makes the slowest steps slower
LOOKAHEAD_LONG = 32  # used for histories of more than LONG steps, where reading the history takes most of the time
LONG = 256
DOUBLE = np.dtype(np.float64)


@final
class FeedbackCorrelator(Correlator):
    """Computes the noise by forward substitution with a ring buffer of past outputs, several steps at once."""

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
        """Return the length of the history, or `lookahead` if that is larger."""
        return max(self._history, self.lookahead)

    def prepare(self) -> None:
        """Collect the entries of C for the steps that are computed now."""
        if self.fresh:
            now = np.arange(self.step, self.step + self.fresh)
            past = np.arange(max(self.step - self._history, 0), self.step)
            rows = self.state_rows()
            self._slots, self._new = past % rows, now % rows
            inside = self.recursion.block(now, now)
            self._past, self._inside = padded(-self.recursion.block(now, past), 2, 4), -inside
            self._pivot = 1.0 / np.diag(inside)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Compute the next `lookahead` steps unless this step has been computed, then write this step's noise."""
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
    """Computes z_t / C[t, t] for a diagonal C, without state."""

    recursion: Feedback
    is_replayed = True

    def state_rows(self) -> int:
        """Return 0, because there is no state."""
        return 0

    def prepare(self) -> None:
        """Compute the factor of the step."""
        self._factor = self.factor / float(self.recursion.row(self.step)[0])

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z and scale it."""
        from antiphase._kernels import scale_noise

        white(self.step, out)
        scale_noise(self._factor, out)

    def replay_from(self, step: int) -> int:
        """Return `step`, because there is no state to replay."""
        return step


@final
class BuffersCorrelator(Correlator):
    """Computes the noise y = z - scale . b of a BLT, then updates its buffers b <- b + (y - loss b).

    `Buffers.constants` defines `scale` and `loss`.
    """

    recursion: Buffers

    def __init__(self, recursion: Buffers, factor: float, entries: int, dtype: np.dtype[Any]) -> None:
        scale, loss = recursion.constants(dtype.name)
        self._weight, self._loss = tuple(scale.astype(dtype)), tuple(loss.astype(dtype))
        super().__init__(recursion, factor, entries, dtype)

    def state_rows(self) -> int:
        """Return the number of buffers, one for each decay."""
        return len(self.recursion.decay)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and replace it by the step's noise."""
        from antiphase._kernels import buffers_step

        white(self.step, out)
        factor = self.dtype.type(self.factor)
        buffers_step(self.state[part.strips], self._loss, self._weight, factor, out)
