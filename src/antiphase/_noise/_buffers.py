"""BLT: one decaying buffer for each decay, read and written once a step.

Buffers and arithmetic have the dtype of the stream. b <- decay b + y is done as b <- b + (y - (1 - decay) b), so that a
decay of 1 - 1e-9 is not rounded to 1. The y that is fed back is the y that is given out, so its rounding is as if z
had been rounded; the rounding of a buffer dies out with the decays of C^-1, like all that enters it.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from antiphase._check import refuse
from antiphase._noise._correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import BLT

LARGEST_WEIGHT = 16.0  # of the absolute scales: float32 then errs by a few units in 1e-6 of z


@final
class Buffers(Correlator):
    """y = z - scale . b, then b <- decay b + y.

    Reference: McMahan, Xu and Zhang 2024, Alg. 3.
    """

    strategy: BLT

    def __init__(self, strategy: BLT, factor: float, entries: int, dtype: np.dtype[Any]) -> None:
        weight = float(np.abs(strategy.scale).sum())
        if dtype == np.dtype(np.float32) and weight > LARGEST_WEIGHT:
            raise refuse(
                "NoiseStream",
                "dtype",
                f"float64 for a BLT whose scales cancel (their absolute sum is {weight:.3g})",
                "float32",
                "pass dtype='float64', or choose a BLT with non-negative scales",
            )
        super().__init__(strategy, factor, entries, dtype)

    def state_rows(self) -> int:
        """One for each decay."""
        return len(self.strategy.decay)

    def prepare(self) -> None:
        """The coefficients, in the dtype of the stream."""
        kind = self.dtype.type
        self._loss = tuple(kind(1.0 - decay) for decay in self.strategy.decay)
        self._weight = tuple(kind(scale) for scale in self.strategy.scale)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Draw z into the output and put the step's noise in its place."""
        from antiphase._kernels import correlate

        white(self.step, out)
        factor = self.dtype.type(self.factor)
        correlate.buffers(self.state[part.strips], self._loss, self._weight, factor, out)
