"""The correlator for strategies in which each output uses all of the white noise z.

These are Fourier, Tree with the full decoder, and matrices that are not lower triangular.
The noise of all steps is computed in the first step. This takes as many model-sized buffers as there are steps, in
memory or in a file. The noising matrix N is computed with NumPy's linear algebra, so the last bits of N (but not of the
white noise z) may depend on the machine. Resume such a run on the same kind of machine.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, final

import numpy as np

from antiphase._durable import BINARY, NO_LINKS
from antiphase._noise.correlator import LANES, PART, Correlator, Noise, Part, Scratch, White, padded
from antiphase.strategies import WholeMatrix

BLOCK = 32  # number of steps computed at once
LARGEST_SCRATCH = 1 << 21  # maximum number of bytes of all rows of z, restricted to one part (a range of entries)
DOUBLE = np.dtype(np.float64)


@final
class WholeCorrelator(Correlator):
    """Computes N z for all steps in the first step, then returns one row per step.

    Args:
        path: path next to which the noise is stored in a temporary file; None to store it in memory. The file is
            unlinked as soon as it is open.
    """

    recursion: WholeMatrix
    is_replayed = True

    def __init__(
        self, recursion: WholeMatrix, factor: float, entries: int, dtype: np.dtype[Any], path: Path | None
    ) -> None:
        self._path = path
        self.lookahead = recursion.steps
        fitting = LARGEST_SCRATCH // (recursion.rows * dtype.itemsize)
        self.part = max(min(PART, fitting) // LANES, 1) * LANES
        super().__init__(recursion, factor, entries, dtype)

    def state_rows(self) -> int:
        """Return the number of steps."""
        return self.recursion.steps

    def prepare(self) -> None:
        """Compute N if the noise has not been computed yet."""
        self._matrix = padded(self.recursion.strategy.noising(), 2, 4) if self.fresh else np.empty((0, 0))

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Compute the noise of all steps unless it has been computed, then write the noise of this step."""
        from antiphase._kernels import matrix_product, read_row

        held = self.state[part.strips]
        if self.fresh:
            z = scratch.array("z", (self.recursion.rows, part.size), self.dtype)
            for row in range(self.recursion.rows):
                white(row, z[row])
            total = scratch.array("total", (BLOCK * LANES,), DOUBLE)
            matrix_product(held, z, self._matrix, self.recursion.steps, total)
        read_row(held, self.step, self.factor, out)

    def reset(self) -> None:
        """Mark the noise as not computed, so that the next step computes it again."""
        self.made = 0

    def replay_from(self, step: int) -> int:
        """Return `step`, because no earlier step must be replayed: the next step computes the noise of all steps."""
        return step

    def allocate(self, rows: int) -> Noise:
        """Return an array in memory, or in an unlinked file that disappears with the stream."""
        if self._path is None or self.entries == 0:
            return super().allocate(rows)
        shape = (-(-self.entries // LANES), rows, LANES)
        path = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINKS | BINARY, 0o600))
        try:
            return np.memmap(path, dtype=self.dtype, mode="r+", shape=shape)
        finally:
            path.unlink()
