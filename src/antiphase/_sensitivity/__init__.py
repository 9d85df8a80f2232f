"""Sensitivity: the worst case of ||C u|| over what one example can contribute."""

from antiphase._sensitivity.columns import column_norms
from antiphase._sensitivity.dispatch import measured, sensitivity
from antiphase._sensitivity.earliest_pattern import earliest_blocks
from antiphase._sensitivity.gram import BandedGram, BlockGram, DenseGram, Gram, TreeGram
from antiphase._sensitivity.theorem_page import page
from antiphase._sensitivity.toeplitz import ToeplitzGram, coefficients

__all__ = [
    "BandedGram",
    "BlockGram",
    "DenseGram",
    "Gram",
    "ToeplitzGram",
    "TreeGram",
    "coefficients",
    "column_norms",
    "earliest_blocks",
    "measured",
    "page",
    "sensitivity",
]
