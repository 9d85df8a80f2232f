"""Products and Gram matrices of Toeplitz matrices."""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase.strategies._gram import Gram, Indices, check_square

LARGEST_COLUMN = 1 << 24  # maximum number of entries of a column that is computed and held in memory
MOST_EXACT_BANDS = 2048  # up to this many bands, `ToeplitzGram.envelope` returns the largest entries, not upper bounds
LONG_COLUMN = 1 << 16  # above this many bands, eigenvalue bounds use a coarser grid of frequencies


def convolve(coefficients: Array, x: Array) -> Array:
    """Return T x along the first axis, where T is lower-triangular Toeplitz with these coefficients.

    With many coefficients, this takes O(n log n) time.
    """
    from scipy.signal import fftconvolve, lfilter

    if len(coefficients) <= 64:
        return lfilter(coefficients, [1.0], x, axis=0)
    kernel = coefficients.reshape(-1, *[1] * (x.ndim - 1))
    return fftconvolve(x, kernel, axes=0)[: len(x)]


def column_fits(steps: int) -> bool:
    """Return whether a column of `steps` entries is short enough to be computed and held in memory."""
    return steps <= LARGEST_COLUMN


def check_column(steps: int) -> None:
    """Raise `NotProved` if a column of `steps` entries is too long to be computed and held in memory."""
    if not column_fits(steps):
        raise NotProved(
            f"A column of {steps} entries is too long to hold in memory; the limit is {LARGEST_COLUMN}.",
            hint="use a BLT with non-negative scales, whose sensitivity is computed without the column",
        )


class ToeplitzGram(Gram):
    """The Gram matrix X of T diag(1 / scales), where T is lower-triangular Toeplitz with first column c.

    Without scales, X[i, i + lag] is the sum of c_r c_{r + lag} over all entries r of column i + lag, that is,
    0 <= r < steps - i - lag.
    """

    def __init__(self, coefficients: Array, steps: int, scales: Array | None = None) -> None:
        self._coefficients = _trimmed(coefficients)
        if scales is not None:
            check_square(float(scales[-1] ** 2))
            check_square(float(scales[0] ** 2))
        self._scales = scales
        self.steps, self.bands = steps, len(self._coefficients)
        # Without scales, shifting contributions u to later steps shifts T u down by as many rows and drops the last
        # entries of T u, so its norm cannot grow.
        self.first_is_worst = self.norms_decrease = scales is None

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the diagonal, computed from cumulative sums of products of coefficients."""
        i = np.arange(start, self.steps - lag if stop is None else stop)
        if lag >= self.bands:
            return np.zeros(len(i))
        c = self._coefficients
        sums = np.cumsum(c[lag:] * c[: len(c) - lag])
        out = sums[np.minimum(self.steps - lag - i, len(sums)) - 1]
        return out if self._scales is None else out / (self._scales[i] * self._scales[i + lag])

    def envelope(self) -> Array:
        """Return an upper bound on the absolute entries of each diagonal.

        Up to `MOST_EXACT_BANDS` bands, the result is the largest absolute entry of each diagonal. For more bands, it is
        the autocorrelation of |c|, plus a margin for the rounding error of the Fourier transform that computes it. If
        there are scales, this bound is divided by their smallest square and limited to 1.
        """
        if self.bands <= MOST_EXACT_BANDS:
            return super().envelope()
        size = 2 * self.bands
        c = np.abs(self._coefficients)
        out = np.fft.irfft(np.abs(np.fft.rfft(c, size)) ** 2, size)[: self.bands]
        out = np.abs(out) + 32 * np.finfo(float).eps * math.log2(size) * (c @ c)
        # The inner product of two columns of norm 1 is at most 1.
        return out if self._scales is None else np.minimum(out / self._scales.min() ** 2, 1.0 + 1e-12)

    def squares(self, weights: Array) -> tuple[float, float]:
        """Return ||C w||^2 and a bound on sum_ij w_i |X_ij| w_j for weights w, by convolution with c and |c|."""
        w = weights if self._scales is None else weights / self._scales
        plain = convolve(self._coefficients, w)
        absolute = convolve(np.abs(self._coefficients), w)
        return float(plain @ plain), float(absolute @ absolute)

    def eigenvalue_bound(self) -> float | None:
        """Return an upper bound on |sum_r c_r e^(i r x)|^2 over all x, which bounds the eigenvalues of X.

        Returns None if there are scales.
        """
        if self._scales is not None:
            return None
        size = _grid(self.bands)
        spectrum = np.abs(np.fft.rfft(self._coefficients, size)) ** 2
        return float(spectrum.max()) / math.cos(math.pi * (self.bands - 1) / size)


class SymmetricGram(Gram):
    """A symmetric Toeplitz Gram matrix, given by its first column g."""

    first_is_worst = True

    def __init__(self, column: Array) -> None:
        self._column = column
        self.steps = self.bands = len(column)

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the diagonal, whose entries are all equal."""
        stop = self.steps - lag if stop is None else stop
        return np.broadcast_to(self._column[lag], stop - start)

    def envelope(self) -> Array:
        """Return the absolute values of the first column, since each diagonal of X is constant."""
        return np.abs(self._column)

    def class_sums(self, period: int) -> tuple[Indices, Array, Array]:
        """Return residue 0, and the sums of |X_ij| and of X_ij over the steps 0, period, 2 period, ... of its pattern.

        No pattern of another residue has a larger sensitivity. If the pattern has k steps, then k - m pairs of its
        steps are m periods apart.
        """
        entries = self._column[::period]
        times = 2.0 * np.arange(len(entries), 0, -1)
        times[0] /= 2.0
        return self.residues(period), np.abs(entries)[None] @ times, entries[None] @ times

    def eigenvalue_bound(self) -> float:
        """Return an upper bound on |g_0 + 2 sum_r g_r cos(r x)| over all x, which bounds the eigenvalues of X."""
        size = _grid(self.bands)
        symbol = 2.0 * np.fft.rfft(self._column, size).real - self._column[0]
        return float(np.abs(symbol).max()) / math.cos(math.pi * (self.bands - 1) / size)


def _trimmed(column: Array) -> Array:
    return column[: np.flatnonzero(column)[-1] + 1]


def _grid(bands: int) -> int:
    """Return the number of grid points on the unit circle: at least 64 per band, or 8 per band for long columns.

    The largest absolute value of a trigonometric polynomial of degree d on N grid points is at least cos(pi d / N)
    times its maximum over the circle (Ehlich and Zeller 1964).
    """
    return 1 << (bands * (64 if bands <= LONG_COLUMN else 8)).bit_length()
