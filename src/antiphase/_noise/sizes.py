"""Compute, in float64, how large the noise of a strategy and the rounding errors of the noise become during a run.

Let C be square, and let the noise y = C^-1 z, where z is white noise, be rounded to a dtype with relative error u. The
rounded noise is C^-1 (z + d), where d_t is roughly sum_s |C[t, s]| u |y_s|. Privacy depends on how close z + d is to
Gaussian, so the rounding error is measured by the size of d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase.strategies import Buffers, Feedback, MovingSum, Recursion, Restart, Strategy, WholeMatrix

PROBES = 8  # number of samples of z
# The first column of a Toeplitz matrix gives the coefficients of a power series c. The first column of the inverse
# matrix gives the coefficients of 1 / c, called terms below.
MOST_PRODUCTS = 1 << 26  # maximum number of multiplications for substitution; beyond it, Fourier transforms are used
# The number of terms to compute is at most the largest of LONGEST_SERIES, MOST_PRODUCTS / bands and 4 * bands.
# `_later_norm` bounds the other terms.
LONGEST_SERIES = 1 << 22
FEW_TERMS = 1 << 10  # number of terms computed by substitution before the first Fourier transform


@final
@dataclass(frozen=True)
class Sizes:
    """Sizes of the noise and its rounding errors, for white noise of standard deviation 1.

    Attributes:
        smallest, largest: smallest and largest standard deviation of (N z)_t over the steps.
        rounding: largest standard deviation of d_t / u over the steps, with d and u as in the module docstring.
        entry: largest absolute entry of C, or of N if the noise is a moving sum.
    """

    smallest: float
    largest: float
    rounding: float
    entry: float


def sizes(strategy: Strategy) -> Sizes:
    """Return the `Sizes` of a strategy. Values outside the range of float64 are infinite or NaN.

    >>> from antiphase.strategies import Toeplitz
    >>> float(sizes(Toeplitz([0.5, 0.25], 1000)).smallest)
    2.0
    """
    with np.errstate(all="ignore"):
        return _sizes(strategy.recursion())


def _sizes(recursion: Recursion) -> Sizes:
    found = Sizes(1.0, 1.0, 1.0, 1.0)  # for trees and Fourier, these values are correct within a factor of about two
    match recursion:
        case Restart():
            found = _sizes(recursion.inner)
        case Feedback(is_constant=True):
            found = _toeplitz(recursion)
        case Feedback() if recursion.bands == recursion.steps or recursion.scales is not None:
            found = _lower(recursion)
        case Feedback():
            found = _banded(recursion)
        case MovingSum():
            found = _moving_sum(recursion)
        case Buffers():
            found = _buffers(recursion)
        case WholeMatrix(is_ordinary=False):
            found = _whole(recursion)
    return found


def _toeplitz(recursion: Feedback) -> Sizes:
    """Return the sizes for C = T diag(1 / scales) with Toeplitz T. The last row of T^-1 has the largest norm."""
    c = recursion.table()[0]
    last = _inverse_norm(c, recursion.steps)
    scales = np.ones(1) if recursion.scales is None else recursion.scales
    return Sizes(scales.min() / abs(c[0]), scales.max() * last, _norm(c) * last, np.abs(c).max() / scales.min())


def _moving_sum(recursion: MovingSum) -> Sizes:
    c = recursion.coefficients
    return Sizes(abs(c[0]), _norm(c), _inverse_norm(c, recursion.steps) * _norm(c), np.abs(c).max())


def _buffers(recursion: Buffers) -> Sizes:
    """Return the sizes for a BLT.

    Let D be the diagonal matrix of decays and 1 the vector of ones. The first column of C has the entries c_0 = 1 and
    c_i = scale . D^(i - 1) 1 for i >= 1. The first column of C^-1 has entries of the same form up to a sign, with
    D - 1 scale^T in place of D. A rounding error in buffer j stays in the buffer and decays with it. Such errors
    contribute scale_j u |b_j| sqrt(sum_i decay_j^(2i)) to d_t, where b_j is the value of the buffer.
    """
    one, scale, count = np.ones(len(recursion.decay)), recursion.scale, recursion.steps - 1
    decays = np.diag(recursion.decay)
    column = scale @ _gram(decays, one, count) @ scale
    buffers = _gram(decays - np.outer(one, scale), one, count)  # the covariance of b
    kept = np.array([_gram(decay[None, None], np.ones(1), count)[0, 0] for decay in recursion.decay])
    largest = float(np.sqrt(1.0 + scale @ buffers @ scale))
    rounding = np.sqrt((1.0 + column) * largest**2 + (scale**2 * np.diag(buffers)) @ kept)
    return Sizes(1.0, largest, rounding, max(1.0, np.abs(scale).max()))


def _banded(recursion: Feedback) -> Sizes:
    from antiphase._kernels import solve_bands

    rows = recursion.table()
    size = _deviations(solve_bands(rows, _probes(recursion.steps)))
    lost = np.zeros(recursion.steps)
    for r in range(recursion.bands):
        lost[r:] += (rows[r:, r] * size[: recursion.steps - r]) ** 2
    pivots = 1.0 / np.abs(rows[:, 0])
    smallest, largest = min(size.min(), pivots.min()), max(size.max(), pivots.max())
    return Sizes(smallest, largest, np.sqrt(lost.max()), np.abs(rows).max())


def _lower(recursion: Feedback) -> Sizes:
    from scipy.linalg import solve_triangular

    steps = np.arange(recursion.steps)
    matrix = recursion.block(steps, steps)
    size = _deviations(solve_triangular(matrix, _probes(recursion.steps), lower=True))
    lost = np.sqrt(matrix**2 @ size**2)
    return Sizes(size.min(), size.max(), lost.max(), np.abs(matrix).max())


def _whole(recursion: WholeMatrix) -> Sizes:
    matrix = recursion.strategy.encoder()
    size = np.linalg.norm(recursion.strategy.noising(), axis=1)
    lost = np.linalg.norm(matrix, axis=0) * size
    return Sizes(size.min(), size.max(), lost.max(), np.abs(matrix).max())


def _inverse_norm(coefficients: Array, steps: int) -> float:
    """Return the norm of the first column of T^-1, or an upper bound on it if the run is very long.

    T is the Toeplitz matrix whose first column has these coefficients.
    """
    bands = len(coefficients)
    products = max(MOST_PRODUCTS // bands, 1)
    count = min(steps, max(products, LONGEST_SERIES, 4 * bands))
    series = _inverse_series(coefficients, count, count if count <= products else FEW_TERMS)
    if count == steps:
        return _norm(series)
    return float(np.hypot(_norm(series), _later_norm(coefficients, series, steps)))


def _inverse_series(c: Array, count: int, direct: int) -> Array:
    """Return the first `count` terms y of the power series 1 / c.

    The first `direct` terms are computed by substitution, and each Newton step doubles the number of terms. Let x be
    the variable of the series. If n terms are correct, then c y = 1 + x^n e for some series e, and the next n terms are
    the first n terms of -y e. The Fourier transforms have an error of about u |c| |y|^2, where u is the relative
    rounding error. This is negligible as long as |c| |y| is far below 1 / u. `check_sizes` ensures this, because it
    limits `Sizes.rounding`, which is |c| |y|.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    from antiphase._kernels import solve_bands

    impulse = np.zeros((direct, 1))
    impulse[0] = 1.0
    series = solve_bands(c[None], impulse)[:, 0]
    while len(series) < count:
        n = len(series)
        size = next_fast_len(3 * n, real=True)
        inverse = rfft(series, size)
        excess = irfft(rfft(c[: 2 * n], size) * inverse, size)[n : 2 * n]
        series = np.append(series, -irfft(rfft(excess, size) * inverse, size)[:n])
    return series[:count]


def _later_norm(c: Array, series: Array, steps: int) -> float:
    """Return an upper bound on the norm of all terms of the power series 1 / c that come after the terms in `series`.

    The terms y satisfy the equations sum_r c_r y_{t-r} = 0 for t >= 1, so each term depends only on the `bands` terms
    before it. Split the terms into blocks of n = len(series) terms. In the equations of a block, move the terms of the
    previous block to the right-hand side, and call it h. Then the block is the convolution of `series` and h, and |h|
    is at most |c|_1 times the norm of the last `bands` terms of the previous block. So |h| grows by a factor of at most
    `ratio` from each block to the next.
    """
    count, bands, total = len(series), len(c), np.abs(c).sum()
    ratio = total * np.abs(series[count - 2 * bands :]).sum()
    first = np.abs(series).sum() * total * _norm(series[count - bands :])
    blocks = -(-steps // count) - 1
    powers = blocks if ratio == 1.0 else (1.0 - ratio ** (2.0 * blocks)) / (1.0 - ratio**2)
    return float(first * np.sqrt(powers))


def _gram(matrix: Array, start: Array, count: int) -> Array:
    """Return G = sum_{i < count} M^i s s^T (M^i)^T with O(log count) matrix products.

    M is `matrix` and s is `start`. Let G_m be the sum of the first m terms. Then G_{2m} = G_m + M^m G_m (M^m)^T and
    G_{m+1} = s s^T + M G_m M^T.
    """
    first = np.outer(start, start)
    gram, power = np.zeros_like(first), np.eye(len(start))
    for bit in bin(count)[2:]:
        gram, power = gram + power @ gram @ power.T, power @ power
        if bit == "1":
            gram, power = first + matrix @ gram @ matrix.T, matrix @ power
    return gram


def _probes(rows: int) -> Array:
    """Return a fixed sample of z, of shape (rows, PROBES)."""
    return np.random.Generator(np.random.Philox(key=1)).standard_normal((rows, PROBES))


def _deviations(noise: Array) -> Array:
    """Estimate the standard deviation of each step from PROBES draws.

    For each step, the probability that the estimate is too small by a factor of 2^16 is below 10^-30.
    """
    return np.sqrt(np.mean(noise**2, axis=1))


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values))
