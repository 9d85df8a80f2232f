"""Strategy matrices C: how noise is correlated over the steps."""

from antiphase.strategies._banded import Banded, outside, row_bands
from antiphase.strategies._banded_inverse import BandedInverse
from antiphase.strategies._base import Strategy, Stream
from antiphase.strategies._blt import BLT, noise_constants
from antiphase.strategies._dense import Dense
from antiphase.strategies._extensible import is_extensible
from antiphase.strategies._fourier import Fourier, wrapped
from antiphase.strategies._identity import Identity
from antiphase.strategies._recursion import convolve
from antiphase.strategies._scale import divided, has_unit_columns, scale_exponents, scaled_exactly, times_power_of_two
from antiphase.strategies._stamped import Stamped
from antiphase.strategies._toeplitz import Toeplitz
from antiphase.strategies._tree import Tree, own_weight

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
    "convolve",
    "divided",
    "has_unit_columns",
    "is_extensible",
    "noise_constants",
    "outside",
    "own_weight",
    "row_bands",
    "scale_exponents",
    "scaled_exactly",
    "times_power_of_two",
    "wrapped",
]
