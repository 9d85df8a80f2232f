"""Modes of balls-in-bins: the vectors that an example can add to C x, one for each bin."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._participation import BallsInBins
from antiphase.strategies import Strategy


def bins_gram(strategy: Strategy, participation: BallsInBins) -> Array:
    """G_ij = <m_i, m_j> for the modes m_i, the sums of the columns of |C| at steps i, i + b, i + 2b, ...

    Contributions are vectors that an adversary chooses step by step, so the pair of distributions that dominates the
    mechanism has the entrywise |C| in place of C. Fewer steps than epochs x steps_per_epoch truncate the modes; a bin
    beyond the last step has the mode 0. No n x n matrix is formed if C has structure.

    **Guarantee**: mean_i N(m_i, noise_std^2 I) against N(0, noise_std^2 I) dominates, in both directions, under
    zero-out and under add-or-remove adjacency. Anything the theorem does not cover raises `NotProved`.

    Args:
        strategy: C; each released row may depend only on earlier steps.
        participation: bins and epochs.

    >>> from antiphase.strategies import Toeplitz
    >>> bins_gram(Toeplitz([1.0, 0.5], 4), BallsInBins(2, 2)).tolist()
    [[2.5, 1.5], [1.5, 2.25]]

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), Lemma 3.2 for a non-negative C. Its proof takes
    |C| by the triangle inequality and then Lemma C.1, which asks for no sign, so it covers negative entries as well.
    """
    check_causal(strategy)
    participation.worst_case.largest_count(strategy.steps)  # raises if there are more steps than the epochs cover
    bins = participation.steps_per_epoch
    column = strategy.toeplitz_column()
    if column is not None:
        return _toeplitz_gram(np.abs(column), strategy.steps, bins)
    return strategy.gram(absolute=True).folded(bins)


def check_causal(strategy: Strategy) -> None:
    """Refuse a C whose noise in a step uses rows of C x + z that later steps complete.

    The theorem lets contributions depend on earlier rows of C x + z only, so nothing else may have been released.
    """
    if not strategy.is_causal:
        raise NotProved(
            f"Amplification is not proved for this {type(strategy).__name__}: the noise of a step uses all rows of C.",
            hint="use a lower-triangular strategy, or the online decoder of a tree",
        )


def _toeplitz_gram(column: Array, steps: int, bins: int) -> Array:
    """The modes are the first one, shifted: G_ij = G_{i+1, j+1} + m[n-1-i] m[n-1-j], all terms non-negative."""
    from scipy.signal import correlate

    used = min(bins, steps)
    padded = np.zeros(-(-steps // bins) * bins)
    padded[: len(column)] = column
    mode = padded.reshape(-1, bins).cumsum(axis=0).ravel()[:steps]
    last = np.maximum(correlate(mode, mode[: steps - used + 1], "valid")[::-1], 0.0)  # a transform may round below 0
    ends = mode[steps - used :][::-1]
    gram = np.zeros((bins, bins))
    gram[used - 1, :used] = gram[:used, used - 1] = last
    for i in range(used - 2, -1, -1):
        gram[i, : used - 1] = gram[i + 1, 1:used] + ends[i] * ends[: used - 1]
    return gram
