"""Early stopping: the strategy that the first steps of a run are charged as."""

from __future__ import annotations

from antiphase._errors import InvalidArgument
from antiphase.strategies import Dense, Strategy

LARGEST_DENSE = 2048


def first_steps(strategy: Strategy, steps: int, triangular: bool) -> Strategy:
    """Return the strategy that the first `steps` steps of a run are charged as; see `Mechanism.first`.

    Args:
        strategy: C of the full run.
        steps: number of steps released, fewer than the strategy has.
        triangular: whether the accounting needs a lower-triangular block even if C has negative entries.
    """
    if triangular or strategy.first_is_monotone:
        return strategy.first(steps)
    return _first_columns(strategy, steps)


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
