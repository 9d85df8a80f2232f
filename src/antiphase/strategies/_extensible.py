"""Which strategies go on beyond their number of steps."""

from __future__ import annotations

from antiphase.strategies._banded_inverse import BandedInverse
from antiphase.strategies._base import Strategy
from antiphase.strategies._blt import BLT
from antiphase.strategies._identity import Identity
from antiphase.strategies._toeplitz import Toeplitz
from antiphase.strategies._tree import Tree


def is_extensible(strategy: Strategy) -> bool:
    """Whether N for more steps, cut to the steps so far, is N: what was released is then part of the longer run.

    True for Identity, Toeplitz without column normalisation, BLT and BandedInverse. For the online tree it holds for
    every step but the last, which closes the tree.

    >>> is_extensible(Toeplitz([1.0, 0.5], 4)), is_extensible(Toeplitz([1.0, 0.5], 4, column_normalized=True))
    (True, False)
    """
    match strategy:
        case Identity() | BLT() | BandedInverse():
            return True
        case Toeplitz():
            return not strategy.column_normalized
        case Tree():
            return strategy.decoder == "online"
    return False
