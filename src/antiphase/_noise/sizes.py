"""How large the noise of a strategy is over the whole run, and how much rounding it takes, in float64.

For square C the noise y = C^-1 z, rounded to a dtype with relative error u, is C^-1 (z + d) with
d_t = sum_s C[t, s] u |y_s|. What is released is as private as z + d is Gaussian, so the size of d is what counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase.strategies import Buffers, Feedback, MovingSum, Recursion, Restart, Strategy, WholeMatrix

PROBES = 8  # draws of z that stand for all
MOST_PRODUCTS = 1 << 26  # of substitution; longer inverse series take Fourier transforms
LONGEST_SERIES = 1 << 22  # of those, unless C has more coefficients than a quarter; what comes later is bounded
FEW_TERMS = 1 << 10  # by substitution before the first transform


@final
@dataclass(frozen=True)
class Sizes:
    """Standard deviations for white noise of standard deviation 1.

    Attributes:
        smallest, largest: of (N z)_t over the steps.
        rounding: of d_t / u, the largest over the steps.
        entry: the largest absolute entry of C, or of N where the noise is a moving sum.
    """

    smallest: float
    largest: float
    rounding: float
    entry: float


def sizes(strategy: Strategy) -> Sizes:
    """Of C and N as they are; infinite or NaN where float64 does not reach.

    >>> from antiphase.strategies import Toeplitz
    >>> float(sizes(Toeplitz([0.5, 0.25], 1000)).smallest)
    2.0
    """
    with np.errstate(all="ignore"):
        return _sizes(strategy.recursion())


def _sizes(recursion: Recursion) -> Sizes:
    found = Sizes(1.0, 1.0, 1.0, 1.0)  # trees and Fourier: within a factor of two or so
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
    """Rows of T^-1 only grow longer: the first is the smallest and the last the largest."""
    c = recursion.table()[0]
    last = _inverse_norm(c, recursion.steps)
    scales = np.ones(1) if recursion.scales is None else recursion.scales
    return Sizes(scales.min() / abs(c[0]), scales.max() * last, _norm(c) * last, np.abs(c).max() / scales.min())


def _moving_sum(recursion: MovingSum) -> Sizes:
    c = recursion.coefficients
    return Sizes(abs(c[0]), _norm(c), _inverse_norm(c, recursion.steps) * _norm(c), np.abs(c).max())


def _buffers(recursion: Buffers) -> Sizes:
    """c_i = scale . D^(i - 1) 1 and, with D - 1 scale^T in place of D, the coefficients of C^-1.

    What a buffer loses to rounding in a step stays in it, but for its decay, and is taken for noise given out: it adds
    to d_t as scale_j u |b_j| sqrt(sum_i decay_j^2i).
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
    """The norm of the first column of T^-1, or an upper bound on it where the run is very long."""
    bands = len(coefficients)
    products = max(MOST_PRODUCTS // bands, 1)
    count = min(steps, max(products, LONGEST_SERIES, 4 * bands))
    series = _inverse_series(coefficients, count, count if count <= products else FEW_TERMS)
    if count == steps:
        return _norm(series)
    return float(np.hypot(_norm(series), _later_norm(coefficients, series, steps)))


def _inverse_series(c: Array, count: int, direct: int) -> Array:
    """`count` terms y of 1 / c: the first `direct` by substitution, each of Newton's steps doubles them.

    Where n terms are right, c y = 1 + x^n e, and the next n terms are those of -y e. Transforms err by about
    u |c| |y|^2 there: next to nothing as long as |c| |y|, which is what the caller wants, is far below 1 / u.
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
    """An upper bound on the norm of what follows the first terms of 1 / c.

    A term depends on the `bands` before it alone. Of n terms let h be what they leave for the next ones: these are
    series * h, and |h| <= |c|_1 |the last terms|. So each n terms leave at most `ratio` times what the n before left.
    """
    count, bands, total = len(series), len(c), np.abs(c).sum()
    ratio = total * np.abs(series[count - 2 * bands :]).sum()
    first = np.abs(series).sum() * total * _norm(series[count - bands :])
    blocks = -(-steps // count) - 1
    powers = blocks if ratio == 1.0 else (1.0 - ratio ** (2.0 * blocks)) / (1.0 - ratio**2)
    return float(first * np.sqrt(powers))


def _gram(matrix: Array, start: Array, count: int) -> Array:
    """G = sum_{i < count} M^i s s^T (M^i)^T, in log2(count) products of matrices.

    With m terms G_m, it is G_{2m} = G_m + M^m G_m (M^m)^T and G_{m+1} = s s^T + M G_m M^T.
    """
    first = np.outer(start, start)
    gram, power = np.zeros_like(first), np.eye(len(start))
    for bit in bin(count)[2:]:
        gram, power = gram + power @ gram @ power.T, power @ power
        if bit == "1":
            gram, power = first + matrix @ gram @ matrix.T, matrix @ power
    return gram


def _probes(rows: int) -> Array:
    """z drawn once and for all."""
    return np.random.Generator(np.random.Philox(key=1)).standard_normal((rows, PROBES))


def _deviations(noise: Array) -> Array:
    """Of every step, from a few draws: too small by 2^-16 only once in 10^30 steps."""
    return np.sqrt(np.mean(noise**2, axis=1))


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values))
