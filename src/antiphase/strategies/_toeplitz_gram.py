"""Products and Gram matrices of Toeplitz matrices."""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase.strategies._gram import Gram, Indices, check_square

LARGEST_COLUMN = 1 << 24  # most entries of a column that is computed and held in memory
MOST_EXACT_BANDS = 2048  # up to this many bands, each diagonal of X is searched for its largest entry
LONG_COLUMN = 1 << 16  # above this many bands, the spectrum is sampled more coarsely


def convolve(coefficients: Array, x: Array) -> Array:
    """Return T x along the first axis, where T has these coefficients in its first column.

    Takes O(n log n) if there are many coefficients.
    """
    from scipy.signal import fftconvolve, lfilter

    if len(coefficients) <= 64:
        return lfilter(coefficients, [1.0], x, axis=0)
    kernel = coefficients.reshape(-1, *[1] * (x.ndim - 1))
    return fftconvolve(x, kernel, axes=0)[: len(x)]


def column_fits(steps: int) -> bool:
    """Return whether a computed column of this many entries may be held in memory."""
    return steps <= LARGEST_COLUMN


def check_column(steps: int) -> None:
    """Raise `NotProved` if a column is too long to compute and hold in memory."""
    if not column_fits(steps):
        raise NotProved(
            f"A column of {steps} entries is too long: at most {LARGEST_COLUMN} are held in memory.",
            hint="use a BLT with non-negative scales: its sensitivity needs no column",
        )


class ToeplitzGram(Gram):
    """The Gram matrix of T diag(1 / scales), where T is lower-triangular Toeplitz with first column c.

    Apart from the scales, X[i, i + lag] is the sum of c_r c_{r + lag} over the entries of column i + lag.
    """

    def __init__(self, coefficients: Array, steps: int, scales: Array | None = None) -> None:
        self._coefficients = _trimmed(coefficients)
        if scales is not None:
            check_square(float(scales[-1] ** 2))
            check_square(float(scales[0] ** 2))
        self._scales = scales
        self.steps, self.bands = steps, len(self._coefficients)
        # Without scales, a later shift of u moves the entries of C u down and drops the last ones.
        self.first_is_worst = self.norms_decrease = scales is None

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the diagonal from cumulative sums of products; column i + lag has steps - i - lag entries."""
        i = np.arange(start, self.steps - lag if stop is None else stop)
        if lag >= self.bands:
            return np.zeros(len(i))
        c = self._coefficients
        sums = np.cumsum(c[lag:] * c[: len(c) - lag])
        out = sums[np.minimum(self.steps - lag - i, len(sums)) - 1]
        return out if self._scales is None else out / (self._scales[i] * self._scales[i + lag])

    def envelope(self) -> Array:
        """Return the exact envelope for few bands, and a bound from the autocorrelation of |c| for many.

        The bound includes a margin for the rounding error of the transform.
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
        """Return both squares by convolution with c and |c|."""
        w = weights if self._scales is None else weights / self._scales
        plain = convolve(self._coefficients, w)
        absolute = convolve(np.abs(self._coefficients), w)
        return float(plain @ plain), float(absolute @ absolute)

    def eigenvalue_bound(self) -> float | None:
        """Return a bound on the maximum of |sum_r c_r e^(i r x)|^2 over x; None for scaled columns."""
        if self._scales is not None:
            return None
        size = _grid(self.bands)
        spectrum = np.abs(np.fft.rfft(self._coefficients, size)) ** 2
        return float(spectrum.max()) / math.cos(math.pi * (self.bands - 1) / size)


class SymmetricGram(Gram):
    """A symmetric Toeplitz X given by its first column."""

    first_is_worst = True

    def __init__(self, column: Array) -> None:
        self._column = column
        self.steps = self.bands = len(column)

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the constant diagonal."""
        stop = self.steps - lag if stop is None else stop
        return np.broadcast_to(self._column[lag], stop - start)

    def envelope(self) -> Array:
        """Return the absolute values of the column."""
        return np.abs(self._column)

    def class_sums(self, period: int) -> tuple[Indices, Array, Array]:
        """Return the sums for the first class, which has k steps and k - m pairs of steps m periods apart."""
        entries = self._column[::period]
        times = 2.0 * np.arange(len(entries), 0, -1)
        times[0] /= 2.0
        return self.residues(period), np.abs(entries)[None] @ times, entries[None] @ times

    def eigenvalue_bound(self) -> float:
        """Return a bound on the maximum of g_0 + 2 sum_r g_r cos(r x) over x."""
        size = _grid(self.bands)
        symbol = 2.0 * np.fft.rfft(self._column, size).real - self._column[0]
        return float(np.abs(symbol).max()) / math.cos(math.pi * (self.bands - 1) / size)


def _trimmed(column: Array) -> Array:
    return column[: np.flatnonzero(column)[-1] + 1]


def _grid(bands: int) -> int:
    """Return the number of grid points on the circle, at least 64 per degree (8 for long columns).

    The largest value of a trigonometric polynomial of degree d on N points is at least cos(pi d / N) times its maximum
    (Ehlich, Zeller 1964).
    """
    return 1 << (bands * (64 if bands <= LONG_COLUMN else 8)).bit_length()
