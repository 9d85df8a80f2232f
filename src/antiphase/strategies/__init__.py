"""Strategy matrices C: how noise is correlated over the steps."""

from antiphase.strategies._banded import Banded
from antiphase.strategies._banded_inverse import BandedInverse
from antiphase.strategies._base import Strategy, Stream
from antiphase.strategies._blt import BLT
from antiphase.strategies._dense import Dense
from antiphase.strategies._fourier import Fourier
from antiphase.strategies._identity import Identity
from antiphase.strategies._stamped import Stamped
from antiphase.strategies._toeplitz import Toeplitz
from antiphase.strategies._tree import Tree

__all__ = [
    "BLT",
    "Banded",
    "BandedInverse",
    "Dense",
    "Fourier",
    "Identity",
    "Stamped",
    "Strategy",
    "Stream",
    "Toeplitz",
    "Tree",
]
