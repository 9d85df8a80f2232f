"""Functions that multiply a strategy by a constant, with or without rounding.

The strategy 2^k C with noise standard deviation 2^k sigma is the same mechanism as C with sigma. Both release the same
noise and have the same guarantee. Only intermediate numbers, such as the state of a noise stream, depend on k.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from antiphase._check import Array
from antiphase._errors import Refused
from antiphase.strategies._base import Strategy


def times_power_of_two(strategy: Strategy, exponent: int) -> Strategy:
    """Return 2^exponent C exactly; raise `Refused` if scaling an entry would round it.

    >>> from antiphase.strategies import Toeplitz
    >>> times_power_of_two(Toeplitz([1.0, 0.5], 2), 3).coefficients.tolist()
    [8.0, 4.0]
    """
    made = strategy.rescaled(
        lambda entries: _scaled(strategy, entries, exponent), lambda entries: _scaled(strategy, entries, -exponent)
    )
    if made is None:
        raise TypeError(f"{type(strategy).__name__} cannot be rescaled")
    return made


def divided(strategy: Strategy, divisor: float) -> Strategy | None:
    """Return C / divisor, rounded; None if the strategy cannot be scaled.

    >>> from antiphase.strategies import BandedInverse
    >>> divided(BandedInverse([1.0, -0.5], 2), 4.0).coefficients.tolist()
    [4.0, -2.0]
    """
    if strategy.has_unit_columns:
        return None
    return strategy.rescaled(lambda entries: entries / divisor, lambda entries: entries * divisor)


def scaled_exactly(value: Any, exponent: int) -> Array | None:
    """Return value * 2^exponent in float64; None if the result would be rounded."""
    given = np.asarray(value, dtype=np.float64)
    with np.errstate(all="ignore"):
        made = np.ldexp(given, exponent)
        return made if np.array_equal(np.ldexp(made, -exponent), given) else None


def _scaled(strategy: Strategy, entries: Array, exponent: int) -> Array:
    made = scaled_exactly(entries, exponent)
    if made is None:
        nonzero = np.abs(entries[entries != 0])
        raise Refused(
            f"The entries of this {type(strategy).__name__} range from {nonzero.min():.3g} to {nonzero.max():.3g}. "
            "No common scale keeps them all in the floating-point range.",
            hint="set negligible entries to zero, or use columns of similar norms",
        )
    return made
