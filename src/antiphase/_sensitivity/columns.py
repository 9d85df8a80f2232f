"""Single participation: the largest column norm."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._sensitivity.bracket import Bracket, Case, exactly
from antiphase._sensitivity.structure import gram
from antiphase._sensitivity.toeplitz import earliest_square
from antiphase.strategies import BLT, Strategy


def column_norms(strategy: Strategy) -> Array:
    """||C e_j|| for every step j, without forming C where it has structure.

    >>> from antiphase.strategies import Tree
    >>> (column_norms(Tree(4)) ** 2).round(12).tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    return np.sqrt(gram(strategy).diagonal(0))


def column_norm(case: Case) -> Bracket:
    """The largest squared column norm; for a Toeplitz matrix that of the first column."""
    if isinstance(case.strategy, BLT):
        return exactly(earliest_square(case.strategy, case.steps, 1, "signed"))
    if case.gram.first_is_worst:
        return exactly(float(case.gram.diagonal(0, 0, 1)[0]))
    return exactly(float(case.gram.diagonal(0).max()))
