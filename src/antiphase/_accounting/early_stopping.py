"""Early stopping: the strategy that the first steps of a run are charged as."""

from __future__ import annotations

from dataclasses import replace

from antiphase._errors import InvalidArgument
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Stamped, Strategy, Toeplitz, Tree, outside

LARGEST_DENSE = 2048


def first_steps(strategy: Strategy, steps: int, triangular: bool) -> Strategy:
    """Return the strategy that the first `steps` steps of a run are charged as; see `Mechanism.first`.

    Args:
        strategy: C of the full run.
        steps: number of steps released, fewer than the strategy has.
        triangular: whether the accounting needs a lower-triangular block even if C has negative entries.
    """
    if triangular or _is_nonnegative(strategy):
        return _leading(strategy, steps)
    return _first_columns(strategy, steps)


def _leading(strategy: Strategy, t: int) -> Strategy:
    """The rows of C that the first t steps complete, on the first t columns; or more of C."""
    leading: Strategy = strategy
    match strategy:
        case Identity() | BLT():
            leading = replace(strategy, steps=t)
        case Toeplitz(column_normalized=False) | BandedInverse():
            leading = replace(strategy, coefficients=strategy.coefficients[:t], steps=t)
        case Toeplitz():
            leading = _leading(Banded(strategy.columns()), t)
        case Banded():
            columns = strategy.columns[:t, :t]
            leading = Banded(columns - outside(columns))
        case Dense() if strategy.is_lower_triangular:
            leading = Dense(strategy.matrix[:t, :t])
        case Tree(decoder="online"):
            leading = Tree(t)
        case Stamped():
            leading = Stamped(strategy.strategy, -(-t // strategy.strategy.steps))
    return leading


def _first_columns(strategy: Strategy, t: int) -> Strategy:
    """All rows of C on the first t columns, where that is small and has full column rank, else all of C.

    Of a matrix with mixed signs the leading blocks have Gram matrices whose entries rise and fall with t, and with
    them the bounds on the sensitivity. With all rows there is one Gram matrix, of which t steps are a part.
    """
    if strategy.steps > LARGEST_DENSE:
        return strategy
    try:
        return Dense(strategy.encoder()[:, :t])
    except InvalidArgument:  # the columns are nearly dependent
        return strategy


def _is_nonnegative(strategy: Strategy) -> bool:
    match strategy:
        case Toeplitz():
            entries = strategy.coefficients
        case BLT():
            entries = strategy.coefficients()
        case BandedInverse():
            entries = strategy.strategy_coefficients()
        case Banded():
            entries = strategy.columns
        case Dense():
            entries = strategy.matrix
        case _:
            return True  # Identity, Tree and whole blocks only ever gain rows and columns
    return bool(entries.min() >= 0.0)
