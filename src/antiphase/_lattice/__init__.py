"""Lattice noise: noise in exact integers, so that the guarantee covers every released bit.

docs/lattice-noise.md describes the mechanism and proves its guarantee.
"""

from antiphase._lattice.grid import SHRINKS, Lattice, add_exactly, choose_lattice, largest_and_norm, rounded_strategy
from antiphase._lattice.integers import (
    IntegerBuffers,
    IntegerForm,
    IntegerRestart,
    IntegerSum,
    integer_form,
)
from antiphase._lattice.range import END_OF_TAIL, log_overflow

__all__ = [
    "END_OF_TAIL",
    "SHRINKS",
    "IntegerBuffers",
    "IntegerForm",
    "IntegerRestart",
    "IntegerSum",
    "Lattice",
    "add_exactly",
    "choose_lattice",
    "integer_form",
    "largest_and_norm",
    "log_overflow",
    "rounded_strategy",
]
