"""Strategy matrices C, which define how noise is correlated across steps.

Names that are imported here but missing from `__all__` are internal to the library.
"""

from antiphase.strategies._banded import Banded
from antiphase.strategies._banded import outside as outside
from antiphase.strategies._banded import row_bands as row_bands
from antiphase.strategies._banded_inverse import BandedInverse
from antiphase.strategies._base import Strategy
from antiphase.strategies._blt import BLT
from antiphase.strategies._dense import Dense
from antiphase.strategies._fourier import Fourier
from antiphase.strategies._fourier import wrapped as wrapped
from antiphase.strategies._gram import MOST_GRAM_ENTRIES as MOST_GRAM_ENTRIES
from antiphase.strategies._gram import Gram as Gram
from antiphase.strategies._gram import Indices as Indices
from antiphase.strategies._gram import check_square as check_square
from antiphase.strategies._identity import Identity
from antiphase.strategies._recursion import (
    Buffers,
    Feedback,
    MovingSum,
    Recursion,
    Restart,
    TreeNodes,
    WholeMatrix,
)
from antiphase.strategies._recursion import own_weight as own_weight
from antiphase.strategies._scale import divided as divided
from antiphase.strategies._scale import scaled_exactly as scaled_exactly
from antiphase.strategies._scale import times_power_of_two as times_power_of_two
from antiphase.strategies._stamped import Stamped
from antiphase.strategies._stream import Stream
from antiphase.strategies._toeplitz import Toeplitz
from antiphase.strategies._toeplitz_gram import MOST_EXACT_BANDS as MOST_EXACT_BANDS
from antiphase.strategies._toeplitz_gram import column_fits as column_fits
from antiphase.strategies._tree import Tree

__all__ = [
    "BLT",
    "Banded",
    "BandedInverse",
    "Buffers",
    "Dense",
    "Feedback",
    "Fourier",
    "Identity",
    "MovingSum",
    "Recursion",
    "Restart",
    "Stamped",
    "Strategy",
    "Stream",
    "Toeplitz",
    "Tree",
    "TreeNodes",
    "WholeMatrix",
]
