"""The magnitude of a strategy's entries, and the same strategy times a power of two.

C and 2^k C with noise of 2^k times the standard deviation are one mechanism: noise and guarantee are the same. Only
numbers in between, such as the state of a noise stream, move with k.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._errors import Refused
from antiphase.strategies._banded import Banded
from antiphase.strategies._banded_inverse import BandedInverse
from antiphase.strategies._base import Strategy
from antiphase.strategies._dense import Dense
from antiphase.strategies._stamped import Stamped
from antiphase.strategies._toeplitz import Toeplitz


def scale_exponents(strategy: Strategy) -> tuple[int, int]:
    """The smallest and the largest power of two among the entries of C that noise is divided by.

    These are the diagonal entries of a lower-triangular C, and all entries of any other. (0, 0) for a strategy without
    a scale of its own.

    >>> scale_exponents(Banded([[4.0, 1.0], [0.25, 0.0]]))
    (-1, 3)
    """
    found = (0, 0)
    match strategy:
        case Stamped():
            found = scale_exponents(strategy.strategy)
        case Toeplitz():
            found = _exponents(strategy.coefficients[:1])
        case Banded():
            found = _exponents(strategy.columns[:, 0])
        case Dense() if strategy.is_lower_triangular:
            found = _exponents(np.diag(strategy.matrix))
        case Dense():
            high = _exponents(strategy.matrix)[1]
            found = high, high
        case BandedInverse():
            low, high = _exponents(strategy.coefficients[:1])[0], _exponents(strategy.coefficients)[1]
            found = -high, -low
    return found


def has_unit_columns(strategy: Strategy) -> bool:
    """Whether C stays the same when its coefficients are scaled, because its columns are normalised."""
    if isinstance(strategy, Stamped):
        return has_unit_columns(strategy.strategy)
    return isinstance(strategy, Toeplitz) and strategy.column_normalized


def times_power_of_two(strategy: Strategy, exponent: int) -> Strategy:
    """2^exponent C, exactly; refused where an entry cannot be scaled without losing digits.

    >>> times_power_of_two(Toeplitz([1.0, 0.5], 2), 3).coefficients.tolist()
    [8.0, 4.0]
    """
    match strategy:
        case Stamped():
            return replace(strategy, strategy=times_power_of_two(strategy.strategy, exponent))
        case Toeplitz():
            return replace(strategy, coefficients=_scaled(strategy, strategy.coefficients, exponent))
        case Banded():
            return replace(strategy, columns=_scaled(strategy, strategy.columns, exponent))
        case Dense():
            return replace(strategy, matrix=_scaled(strategy, strategy.matrix, exponent))
        case BandedInverse():
            return replace(strategy, coefficients=_scaled(strategy, strategy.coefficients, -exponent))
    raise TypeError(f"{type(strategy).__name__} has no scale")


def divided(strategy: Strategy, divisor: float) -> Strategy | None:
    """C / divisor, rounded; None for a strategy that cannot be scaled.

    >>> divided(BandedInverse([1.0, -0.5], 2), 4.0).coefficients.tolist()
    [4.0, -2.0]
    """
    made: Strategy | None = None
    match strategy:
        case Stamped():
            inner = divided(strategy.strategy, divisor)
            made = None if inner is None else replace(strategy, strategy=inner)
        case Toeplitz(column_normalized=False):
            made = replace(strategy, coefficients=strategy.coefficients / divisor)
        case Banded():
            made = replace(strategy, columns=strategy.columns / divisor)
        case Dense():
            made = replace(strategy, matrix=strategy.matrix / divisor)
        case BandedInverse():
            made = replace(strategy, coefficients=strategy.coefficients * divisor)
    return made


def scaled_exactly(value: Any, exponent: int) -> Array | None:
    """value x 2^exponent in float64; None where that rounds."""
    given = np.asarray(value, dtype=np.float64)
    with np.errstate(all="ignore"):
        made = np.ldexp(given, exponent)
        return made if np.array_equal(np.ldexp(made, -exponent), given) else None


def _scaled(strategy: Strategy, entries: Array, exponent: int) -> Array:
    made = scaled_exactly(entries, exponent)
    if made is None:
        nonzero = np.abs(entries[entries != 0])
        raise Refused(
            f"The entries of this {type(strategy).__name__} range from {nonzero.min():.3g} to {nonzero.max():.3g}: "
            "no common scale keeps them all within floating point.",
            hint="set entries to zero that are negligible beside the others, or use columns of similar norms",
        )
    return made


def _exponents(entries: Array) -> tuple[int, int]:
    found = np.frexp(entries[entries != 0])[1]
    return int(found.min()), int(found.max())
