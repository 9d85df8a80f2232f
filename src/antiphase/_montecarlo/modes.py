"""Modes of balls-in-bins: what an example adds to C x, one vector for each bin it may fall into."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._participation import BallsInBins
from antiphase._sensitivity import BandedGram, BlockGram, DenseGram, Gram, ToeplitzGram, TreeGram, coefficients
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Stamped, Strategy, Toeplitz, Tree


def bins_gram(strategy: Strategy, participation: BallsInBins) -> Array:
    """G_ij = <m_i, m_j> for the modes m_i, the sums of the columns of |C| at steps i, i + b, i + 2b, ...

    Contributions are vectors that an adversary chooses step by step, so the pair of distributions that dominates the
    mechanism has the entrywise |C| in place of C. Fewer steps than epochs x steps_per_epoch cut the modes short; a bin
    beyond the last step has the mode 0. No n x n matrix is formed where C has structure.

    **Guarantee**: mean_i N(m_i, noise_std^2 I) against N(0, noise_std^2 I) dominates, in both directions, under
    zero-out and under add-or-remove adjacency. Anything the theorem does not cover raises `NotProved`.

    Args:
        strategy: C; each released row may depend only on earlier steps.
        participation: bins and epochs.

    >>> bins_gram(Toeplitz([1.0, 0.5], 4), BallsInBins(2, 2)).tolist()
    [[2.5, 1.5], [1.5, 2.25]]

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), Lemma 3.2 for a non-negative C. Its proof takes
    |C| by the triangle inequality and then Lemma C.1, which asks for no sign, so it covers negative entries as well.
    """
    check_causal(strategy)
    participation.worst_case.largest_count(strategy.steps)  # refuses more steps than the epochs hold
    bins = participation.steps_per_epoch
    match strategy:
        case Identity() | BLT() | BandedInverse() | Toeplitz(column_normalized=False):
            return _toeplitz_gram(np.abs(coefficients(strategy)), strategy.steps, bins)
        case Dense():
            modes = _class_sums(np.abs(strategy.matrix), bins)
            return modes.T @ modes
    return _folded_gram(_absolute_gram(strategy), bins)


def check_causal(strategy: Strategy) -> None:
    """Refuse a C whose noise in a step needs rows of C x + z that later steps complete.

    The theorem lets contributions depend on earlier rows of C x + z only, so these must be all that was released.
    """
    if not strategy.is_causal:
        raise NotProved(
            f"Amplification is not proved for this {type(strategy).__name__}: its noise in a step needs all rows of C.",
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


def _folded_gram(gram: Gram, bins: int) -> Array:
    """X[t, t + lag] belongs to the bins t and t + lag, modulo their number."""
    out = np.zeros((bins, bins))
    i = np.arange(bins)
    for lag in range(gram.bands):
        sums = _class_sums(gram.diagonal(lag)[None], bins)[0]
        out[i, (i + lag) % bins] += sums
        if lag:
            out[(i + lag) % bins, i] += sums
    return out


def _absolute_gram(strategy: Strategy) -> Gram:
    match strategy:
        case Toeplitz():
            return ToeplitzGram(np.abs(strategy.coefficients), strategy.steps, strategy.column_scales())
        case Banded():
            return BandedGram(np.abs(strategy.columns))
        case Tree():
            return TreeGram(strategy.steps)
        case Dense():
            return DenseGram(np.abs(strategy.matrix))
        case Stamped():
            return BlockGram(_absolute_gram(strategy.strategy), strategy.repeats)
    return ToeplitzGram(np.abs(coefficients(strategy)), strategy.steps)


def _class_sums(values: Array, bins: int) -> Array:
    """Sums of the columns that share a bin."""
    rows, steps = values.shape
    padded = np.zeros((rows, -(-steps // bins) * bins))
    padded[:, :steps] = values
    return padded.reshape(rows, -1, bins).sum(axis=1)
