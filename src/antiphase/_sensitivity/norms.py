"""Bounds on the sensitivity from column norms (single participation) and from the spectral norm (any participation).

X = C^T C is the Gram matrix of C.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import Bracket, Case, exactly
from antiphase._sensitivity.toeplitz import earliest_square, one_pass
from antiphase.strategies import Gram, Strategy

LARGEST_EIGENPROBLEM = 2048  # maximum number of steps for which the eigenvalues of the dense X are computed


def column_norms(strategy: Strategy) -> Array:
    """Return ||C e_j||, the norm of column j of C, for every step j. C is not formed if formulas for the norms exist.

    >>> from antiphase.strategies import Tree
    >>> (column_norms(Tree(4)) ** 2).round(12).tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    return np.sqrt(strategy.gram().diagonal(0))


def column_norm(case: Case) -> Bracket:
    """Return the largest squared column norm. For a Toeplitz matrix, the first column has the largest norm."""
    if one_pass(case.strategy) is not None:
        return exactly(earliest_square(case.strategy, case.steps, 1, "signed"))
    return exactly(case.gram.largest_square())


def largest_eigenvalue(gram: Gram) -> float:
    """Return an upper bound on the largest eigenvalue of X.

    For few steps, the eigenvalues of the dense X are computed. For more steps, `Gram.eigenvalue_bound` is used, which
    returns a bound for Toeplitz matrices. Raises `NotProved` if there is no such bound.
    """
    if gram.steps <= LARGEST_EIGENPROBLEM:
        return float(np.linalg.eigvalsh(gram.dense())[-1]) * (1.0 + 8 * gram.steps * np.finfo(float).eps)
    bound = gram.eigenvalue_bound()
    if bound is None:
        raise NotProved(
            f"The largest eigenvalue is computed only for up to {LARGEST_EIGENPROBLEM} steps or a Toeplitz matrix.",
            hint="method='row-sum' gives an upper bound",
        )
    return bound


def spectral(case: Case) -> Bracket:
    """Return k ||C||^2, an upper bound on ||C u||^2 for contributions u to any k steps."""
    return Bracket(0.0, case.count * largest_eigenvalue(case.gram))
