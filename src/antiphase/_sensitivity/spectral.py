"""The largest eigenvalue of X, from above."""

from __future__ import annotations

import numpy as np

from antiphase._errors import NotProved
from antiphase._sensitivity.bracket import Bracket, Case
from antiphase._sensitivity.gram import Gram

LARGEST_DENSE = 2048


def largest_eigenvalue(gram: Gram) -> float:
    """Of the dense X for few steps, else from the symbol of a Toeplitz matrix."""
    if gram.steps <= LARGEST_DENSE:
        return float(np.linalg.eigvalsh(gram.dense())[-1]) * (1.0 + 8 * gram.steps * np.finfo(float).eps)
    bound = gram.eigenvalue_bound()
    if bound is None:
        raise NotProved(
            f"The largest eigenvalue is computed for up to {LARGEST_DENSE} steps or a Toeplitz matrix.",
            hint="method='row-sum' gives an upper bound",
        )
    return bound


def spectral(case: Case) -> Bracket:
    """||C u||^2 <= k ||C||^2 for any pattern of k steps."""
    return Bracket(0.0, case.count * largest_eigenvalue(case.gram))
