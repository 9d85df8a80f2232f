"""Forward substitution with a banded lower-triangular matrix, in float64."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled(nogil=True, error_model="numpy")
def solve_bands(bands: Array, right: Array) -> Array:
    """C^-1 right for bands[t, r] = C[t, t - r]; a single row of bands serves all rows of C."""
    steps, width = right.shape
    out = np.empty((steps, width))
    for t in range(steps):
        row = bands[t] if bands.shape[0] > 1 else bands[0]
        for i in range(width):
            out[t, i] = right[t, i]
        for r in range(1, min(len(row), t + 1)):
            if row[r] != 0.0:
                for i in range(width):
                    out[t, i] -= row[r] * out[t - r, i]
        for i in range(width):
            out[t, i] /= row[0]
    return out
