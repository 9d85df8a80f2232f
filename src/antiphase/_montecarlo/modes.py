"""The Gram matrix of the modes of balls-in-bins.

A bin is a step of the epoch. Its mode is the sum of the columns of |C| at this step of every epoch.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._participation import BallsInBins
from antiphase.strategies import Strategy


def bins_gram(strategy: Strategy, participation: BallsInBins) -> Array:
    """Return G_ij = <m_i, m_j>, where mode m_i is the sum of the columns of |C| at the steps i, i + b, i + 2b, ...

    The theorem cited below bounds the mechanism by a pair of distributions, the dominating pair. Contributions are
    vectors that an adversary chooses step by step, so the pair uses the entrywise |C| instead of C. If the run has
    fewer steps than epochs x steps_per_epoch, each mode is a sum over steps of the run only, and a bin without a step
    has mode 0. If C is structured, no steps x steps matrix is formed.

    **Guarantee**: the pair mean_i N(m_i, noise_std^2 I) and N(0, noise_std^2 I) dominates the mechanism, in both
    directions, under zero-out and add-or-remove adjacency. A strategy that the theorem does not cover raises
    `NotProved`.

    Args:
        strategy: strategy matrix, C; must be causal.
        participation: the participation, with its number of bins, b, and number of epochs.

    >>> from antiphase.strategies import Toeplitz
    >>> bins_gram(Toeplitz([1.0, 0.5], 4), BallsInBins(2, 2)).tolist()
    [[2.5, 1.5], [1.5, 2.25]]

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), Lemma 3.2 for a non-negative C. Its proof replaces
    C by |C| with the triangle inequality and then uses Lemma C.1, which does not require non-negative entries. The
    proof therefore also covers negative entries.
    """
    check_causal(strategy)
    participation.worst_case.largest_count(strategy.steps)  # raises if there are more steps than in all epochs
    bins = participation.steps_per_epoch
    column = strategy.toeplitz_column()
    if column is not None:
        return _toeplitz_gram(np.abs(column), strategy.steps, bins)
    return strategy.gram(absolute=True).folded(bins)


def check_causal(strategy: Strategy) -> None:
    """Raise `NotProved` if the output of a step depends on a row of C x + z that a later step completes.

    A step completes a row if it is the last step with a non-zero entry in this row of C. In the theorem, contributions
    to a step may depend only on rows that earlier steps have completed. The outputs of earlier steps must therefore not
    reveal other rows.
    """
    if not strategy.is_causal:
        raise NotProved(
            f"Amplification is not proved for this {type(strategy).__name__}: a step's noise uses later rows of C.",
            hint="use a lower-triangular strategy, or the online decoder of a tree",
        )


def _toeplitz_gram(column: Array, steps: int, bins: int) -> Array:
    """Return the Gram matrix G for a Toeplitz C with n steps. Mode i is then the first mode m, shifted by i steps.

    Uses the recursion G_ij = G_{i+1, j+1} + m[n-1-i] m[n-1-j], in which all terms are non-negative.
    """
    from scipy.signal import correlate

    used = min(bins, steps)
    padded = np.zeros(-(-steps // bins) * bins)
    padded[: len(column)] = column
    mode = padded.reshape(-1, bins).cumsum(axis=0).ravel()[:steps]
    last = np.maximum(correlate(mode, mode[: steps - used + 1], "valid")[::-1], 0.0)  # rounding may give negatives
    ends = mode[steps - used :][::-1]
    gram = np.zeros((bins, bins))
    gram[used - 1, :used] = gram[:used, used - 1] = last
    for i in range(used - 2, -1, -1):
        gram[i, : used - 1] = gram[i + 1, 1:used] + ends[i] * ends[: used - 1]
    return gram
