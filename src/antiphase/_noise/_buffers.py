"""BLT: one decaying buffer for each decay, read and written once a step.

Buffers and arithmetic have the dtype of the stream. b <- decay b + y is done as b <- b + (y - (1 - decay) b), so that a
decay of 1 - 1e-9 is not rounded to 1. The y that is fed back is the y that is given out, so its rounding is as if z
had been rounded; the rounding of a buffer dies out with the decays of C^-1, like all that enters it.
"""

from __future__ import annotations

from typing import final

from antiphase._noise._correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import BLT


@final
class Buffers(Correlator):
    """y = z - scale . b, then b <- decay b + y.

    Reference: McMahan, Xu and Zhang 2024, Alg. 3.
    """

    strategy: BLT

    def state_rows(self) -> int:
        """One for each decay."""
        return len(self.strategy.decay)

    def begin(self, step: int) -> None:
        """The coefficients, in the dtype of the stream."""
        self._step = step
        kind = self.dtype.type
        self._loss = tuple(kind(1.0 - decay) for decay in self.strategy.decay)
        self._weight = tuple(kind(scale) for scale in self.strategy.scale)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and put the step's noise in its place."""
        from antiphase._kernels import correlate

        white(self._step, out)
        factor = self.dtype.type(self.factor)
        correlate.buffers(self.state[part.strips], self._loss, self._weight, factor, out)
