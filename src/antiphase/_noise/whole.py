"""Strategies whose every output uses all of z: the noise of all steps is made before the first.

Fourier, the full tree decoder, and matrices that are not lower triangular. This takes as many model-sized buffers as
there are steps, in memory or in a file. N itself comes from NumPy's linear algebra, so its last bits, unlike those of
z, may depend on the machine: resume such a run on the kind of machine it began on.
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

BLOCK = 32  # outputs made at once
LARGEST_SCRATCH = 1 << 21  # bytes of z held at once, all rows of a part
DOUBLE = np.dtype(np.float64)


@final
class WholeCorrelator(Correlator):
    """N z for all steps in the first one, then one row a step.

    Args:
        path: beside which a file for the noise is made and at once unlinked; None for memory.
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
        """One for each step."""
        return self.recursion.steps

    def prepare(self) -> None:
        """Everything is made at the first step asked for."""
        self._matrix = padded(self.recursion.strategy.noising(), 2, 4) if self.fresh else np.empty((0, 0))

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Make all steps if that is not done, then hand out one."""
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
        """Everything will be written again."""
        self.made = 0

    def replay_from(self, step: int) -> int:
        """Nothing to replay: all steps are made at once."""
        return step

    def allocate(self, rows: int) -> Noise:
        """Memory, or a file of this stream alone, without a name: it is gone when the stream is."""
        if self._path is None or self.entries == 0:
            return super().allocate(rows)
        shape = (-(-self.entries // LANES), rows, LANES)
        path = self._path.with_name(f"{self._path.name}.{secrets.token_hex(8)}")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_LINKS | BINARY, 0o600))
        try:
            return np.memmap(path, dtype=self.dtype, mode="r+", shape=shape)
        finally:
            path.unlink()
