"""How many diagonals a strategy has."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Stamped, Strategy, Toeplitz


def bands(strategy: Strategy) -> int | None:
    """The number of diagonals of lower-triangular C up to the last that is not zero; None for any other C.

    With at most b bands, steps j, j + b, j + 2b, ... have no row of C in common.

    >>> bands(Toeplitz([1.0, 0.5, 0.0], 8)), bands(BLT([0.5], [0.25], 8))
    (2, 8)
    """
    match strategy:
        case Identity():
            found: int | None = 1
        case Toeplitz():
            found = _last(strategy.coefficients)
        case Banded():
            found = _last(np.abs(strategy.columns).max(axis=0))
        case BandedInverse():
            found = 1 if _last(strategy.coefficients) == 1 else strategy.steps
        case BLT():
            found = strategy.steps
        case Dense() if strategy.is_lower_triangular:
            rows, columns = np.nonzero(strategy.matrix)
            found = int((rows - columns).max()) + 1
        case Stamped():
            found = bands(strategy.strategy)
        case _:
            found = None
    return found


def _last(values: Array) -> int:
    """The position of the last number that is not zero, counted from 1."""
    return int(np.flatnonzero(values)[-1]) + 1
