"""Blocks of a lower-triangular C, read without making the whole of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase.strategies import Banded, Dense, Toeplitz

Steps = NDArray[np.int64]
Triangular = Banded | Dense | Toeplitz
Reader = Callable[[Steps, Steps], Array]


def bands_of(strategy: Triangular) -> int:
    """Diagonals of C, the main one included."""
    return strategy.steps if isinstance(strategy, Dense) else strategy.bands


def reader(strategy: Triangular) -> Reader:
    """What gives the entries of C in the given rows and columns.

    >>> reader(Toeplitz([1.0, 0.5], 3))(np.array([1, 2]), np.array([0, 1])).tolist()
    [[0.5, 1.0], [0.0, 0.5]]
    """
    if isinstance(strategy, Dense):
        return lambda rows, columns: strategy.matrix[np.ix_(rows, columns)]
    if isinstance(strategy, Banded):
        return lambda rows, columns: _inside(strategy.bands, rows, columns, lambda lag: strategy.columns[columns, lag])
    scales = strategy.column_scales() if strategy.column_normalized else np.ones(1)
    return lambda rows, columns: _inside(
        strategy.bands, rows, columns, lambda lag: strategy.coefficients[lag] / scales[columns % len(scales)]
    )


def _inside(bands: int, rows: Steps, columns: Steps, entries: Callable[[Steps], Array]) -> Array:
    """Entries by lag, zero outside the band."""
    lag = rows[:, None] - columns[None, :]
    inside = (lag >= 0) & (lag < bands)
    return np.where(inside, entries(np.where(inside, lag, 0)), 0.0)
