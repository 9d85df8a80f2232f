"""Strategy matrices C: how noise is correlated over the steps."""

from antiphase.strategies._banded import Banded, outside, row_bands
from antiphase.strategies._banded_inverse import BandedInverse
from antiphase.strategies._base import Strategy
from antiphase.strategies._blt import BLT
from antiphase.strategies._dense import Dense
from antiphase.strategies._fourier import Fourier, wrapped
from antiphase.strategies._identity import Identity
from antiphase.strategies._recursion import (
    Buffers,
    Feedback,
    MovingSum,
    Recursion,
    Restart,
    TreeNodes,
    WholeMatrix,
    own_weight,
)
from antiphase.strategies._scale import divided, scaled_exactly, times_power_of_two
from antiphase.strategies._stamped import Stamped
from antiphase.strategies._stream import Stream
from antiphase.strategies._toeplitz import Toeplitz, convolve
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
    "convolve",
    "divided",
    "outside",
    "own_weight",
    "row_bands",
    "scaled_exactly",
    "times_power_of_two",
    "wrapped",
]
