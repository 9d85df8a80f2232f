"""Clipping and summing updates, in float64 and piece by piece: an update is never copied as a whole.

For an update u with clipping norm c the sum grows by u min(1, c / ||u||).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 15  # entries held in float64 at once: they stay in the cache
ROUNDING = 1e-9  # more than the relative error of a norm summed in float64


def norm(arrays: Iterable[NDArray[Any]]) -> float:
    """The Euclidean norm over all arrays; infinite or NaN where an entry is, or where its square is.

    >>> norm([np.array([3.0, 0.0], dtype=np.float32), np.array(4.0)])
    5.0
    """
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):  # what clients send may be anything
        for piece in _pieces(arrays):
            total += float(np.square(piece, out=piece).sum())  # no BLAS: its threads cost more than such a piece
    return math.sqrt(total)


def largest(arrays: Iterable[NDArray[Any]]) -> float:
    """The largest absolute entry; zero where there is none."""
    return max((float(np.abs(piece).max()) for piece in _pieces(arrays)), default=0.0)


def clip_factor(length: float, clip_norm: float) -> float:
    """What to multiply an update of norm `length` with, so that its norm is at most `clip_norm`.

    **Guarantee**: rounding included; an update well within the norm is left as it is.
    """
    return 1.0 if length * (1.0 + ROUNDING) <= clip_norm else clip_norm / (length * (1.0 + ROUNDING))


def add_scaled(total: Mapping[str, NDArray[np.float64]], arrays: Mapping[str, NDArray[Any]], factor: float) -> None:
    """Add factor x arrays to the total, in place."""
    for name, array in arrays.items():
        into, start = total[name].reshape(-1), 0
        for piece in _pieces([array]):
            np.multiply(piece, factor, out=piece)
            into[start : start + piece.size] += piece
            start += piece.size


def _pieces(arrays: Iterable[NDArray[Any]]) -> Iterator[NDArray[np.float64]]:
    for array in arrays:
        flat = array.reshape(-1)
        for start in range(0, flat.size, PIECE):
            yield flat[start : start + PIECE].astype(np.float64)
