"""BLT: one decaying buffer for each decay, read and written once a step, in the dtype of the stream."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import Buffers


@final
class DecayingBuffers(Correlator):
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
