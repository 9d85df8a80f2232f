"""Clips and sums updates in float64. Updates are read in chunks, so that no update is copied as a whole.

With clipping norm c, an update u adds u min(1, c / ||u||) to the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK_ENTRIES = 1 << 15  # entries that are converted to float64 at once; a chunk fits in the cache
NORM_ERROR = 1e-9  # upper bound on the relative error of a norm computed in float64


def norm(arrays: Iterable[NDArray[Any]]) -> float:
    """Return the Euclidean norm over all arrays.

    The norm is infinite or NaN if any entry, or its square, is infinite or NaN.

    >>> norm([np.array([3.0, 0.0], dtype=np.float32), np.array(4.0)])
    5.0
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # clients may send anything
        for chunk in _chunks(arrays):
            total += float(np.square(chunk, out=chunk).sum())  # faster than BLAS, which starts threads
    return math.sqrt(total)


def largest(arrays: Iterable[NDArray[Any]]) -> float:
    """Return the largest absolute value of all entries, or zero if there are no entries."""
    return max((float(np.abs(chunk).max()) for chunk in _chunks(arrays)), default=0.0)


def clip_factor(length: float, clip_norm: float) -> float:
    """Return the factor, at most 1, that clips an update of norm `length` to norm `clip_norm`.

    **Guarantee**: the clipped norm is at most `clip_norm` even if `length` has a relative rounding error of up to
    `NORM_ERROR`. If `length` is below `clip_norm` by more than that error, the factor is 1.
    """
    return 1.0 if length * (1.0 + NORM_ERROR) <= clip_norm else clip_norm / (length * (1.0 + NORM_ERROR))


def add_scaled(total: Mapping[str, NDArray[np.float64]], arrays: Mapping[str, NDArray[Any]], factor: float) -> None:
    """Add `factor` times `arrays` to `total`, in place."""
    for name, array in arrays.items():
        into, start = total[name].reshape(-1), 0
        for chunk in _chunks([array]):
            np.multiply(chunk, factor, out=chunk)
            into[start : start + chunk.size] += chunk
            start += chunk.size


def _chunks(arrays: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.float64]]:
    for array in arrays:
        flat = array.reshape(-1)
        for start in range(0, flat.size, CHUNK_ENTRIES):
            yield flat[start : start + CHUNK_ENTRIES].astype(np.float64)
