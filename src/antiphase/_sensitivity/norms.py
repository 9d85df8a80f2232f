"""Norms of C: its largest column norm for a single participation, and its spectral norm as a bound for any pattern."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import Bracket, Case, exactly
from antiphase._sensitivity.toeplitz import earliest_square, one_pass
from antiphase.strategies import Gram, Strategy

LARGEST_EIGENPROBLEM = 2048  # steps for which the eigenvalues of the dense X are computed


def column_norms(strategy: Strategy) -> Array:
    """Return ||C e_j|| for every step j, without forming C if it has structure.

    >>> from antiphase.strategies import Tree
    >>> (column_norms(Tree(4)) ** 2).round(12).tolist()
    [3.0, 3.0, 3.0, 3.0]
    """
    return np.sqrt(strategy.gram().diagonal(0))


def column_norm(case: Case) -> Bracket:
    """Return the largest squared column norm; for a Toeplitz matrix that of the first column."""
    if one_pass(case.strategy) is not None:
        return exactly(earliest_square(case.strategy, case.steps, 1, "signed"))
    if case.gram.first_is_worst:
        return exactly(float(case.gram.diagonal(0, 0, 1)[0]))
    return exactly(float(case.gram.diagonal(0).max()))


def largest_eigenvalue(gram: Gram) -> float:
    """Return the largest eigenvalue of the dense X for few steps, else a bound from the symbol of a Toeplitz matrix."""
    if gram.steps <= LARGEST_EIGENPROBLEM:
        return float(np.linalg.eigvalsh(gram.dense())[-1]) * (1.0 + 8 * gram.steps * np.finfo(float).eps)
    bound = gram.eigenvalue_bound()
    if bound is None:
        raise NotProved(
            f"The largest eigenvalue is computed for up to {LARGEST_EIGENPROBLEM} steps or a Toeplitz matrix.",
            hint="method='row-sum' gives an upper bound",
        )
    return bound


def spectral(case: Case) -> Bracket:
    """Bound ||C u||^2 by k ||C||^2, for any pattern of k steps."""
    return Bracket(0.0, case.count * largest_eigenvalue(case.gram))
