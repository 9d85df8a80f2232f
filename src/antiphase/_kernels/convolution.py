"""Sums of products of non-negative numbers: no cancellation, so that tails of any size keep their digits."""

from __future__ import annotations

from antiphase._check import Array
from antiphase._kernels.compiled import compiled


@compiled(nogil=True)
def convolve_rows(kernel: Array, rows: Array, out: Array) -> None:
    """out[r, j] = sum_{i <= j} kernel[i] rows[r, j - i]."""
    count, size = rows.shape
    out[:] = 0.0
    for i in range(size):
        weight = kernel[i]
        if weight > 0.0:
            for r in range(count):
                source, target = rows[r, : size - i], out[r, i:]
                for j in range(size - i):
                    target[j] += weight * source[j]
