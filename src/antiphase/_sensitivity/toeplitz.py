"""Gram matrices of Toeplitz strategies, and the norm of a sum of their columns in one pass."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._sensitivity.earliest_pattern import earliest_blocks
from antiphase._sensitivity.gram import Gram, Indices
from antiphase.strategies import BLT, BandedInverse, Identity, Strategy, Toeplitz, convolve

LARGEST_COLUMN = 1 << 24  # steps for which a column is held in memory
LONGEST_PASS = 1 << 34  # steps, which take a minute or two and cannot be interrupted
DIRECT = 2048
LONG = 1 << 16
Signs = Literal["signed", "absolute", "majorant"]


class ToeplitzGram(Gram):
    """Of T diag(1 / scales), T lower triangular Toeplitz: X[i, i + lag] sums the c_r c_{r + lag} that fit."""

    def __init__(self, coefficients: Array, steps: int, scales: Array | None = None) -> None:
        self._coefficients = _trimmed(coefficients)
        self._scales = scales
        self.steps, self.bands = steps, len(self._coefficients)
        # Without scales a shift moves the rows of C u down and the last ones out of the run.
        self.first_is_worst = scales is None

    def diagonal(self, lag: int, start: int = 0, stop: int | None = None) -> Array:
        """Cumulative sums of the products; column i + lag has steps - i - lag entries."""
        i = np.arange(start, self.steps - lag if stop is None else stop)
        if lag >= self.bands:
            return np.zeros(len(i))
        c = self._coefficients
        sums = np.cumsum(c[lag:] * c[: len(c) - lag])
        out = sums[np.minimum(self.steps - lag - i, len(sums)) - 1]
        return out if self._scales is None else out / (self._scales[i] * self._scales[i + lag])

    def envelope(self) -> Array:
        """Exact for few bands; for many the autocorrelation of |c|, with room for the rounding of the transform."""
        if self.bands <= DIRECT:
            return super().envelope()
        size = 2 * self.bands
        c = np.abs(self._coefficients)
        out = np.fft.irfft(np.abs(np.fft.rfft(c, size)) ** 2, size)[: self.bands]
        out = np.abs(out) + 32 * np.finfo(float).eps * math.log2(size) * (c @ c)
        # Columns of norm 1 have products of at most 1.
        return out if self._scales is None else np.minimum(out / self._scales.min() ** 2, 1.0 + 1e-12)

    def squares(self, weights: Array) -> tuple[float, float]:
        """By convolution with c and |c|."""
        w = weights if self._scales is None else weights / self._scales
        plain = convolve(self._coefficients, w)
        absolute = convolve(np.abs(self._coefficients), w)
        return float(plain @ plain), float(absolute @ absolute)

    def eigenvalue_bound(self) -> float | None:
        """The largest squared magnitude of sum_r c_r e^(i r x), for columns as they are."""
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
        """One number, repeated."""
        stop = self.steps - lag if stop is None else stop
        return np.broadcast_to(self._column[lag], stop - start)

    def envelope(self) -> Array:
        """As it stands."""
        return np.abs(self._column)

    def class_sums(self, period: int) -> tuple[Indices, Array, Array]:
        """The first class holds k - m pairs at distance m periods."""
        entries = self._column[::period]
        times = 2.0 * np.arange(len(entries), 0, -1)
        times[0] /= 2.0
        return self.residues(period), np.abs(entries)[None] @ times, entries[None] @ times

    def eigenvalue_bound(self) -> float:
        """The largest value of g_0 + 2 sum_r g_r cos(r x)."""
        size = _grid(self.bands)
        symbol = 2.0 * np.fft.rfft(self._column, size).real - self._column[0]
        return float(np.abs(symbol).max()) / math.cos(math.pi * (self.bands - 1) / size)


def column_fits(strategy: Strategy) -> bool:
    """Whether the first column may be held in memory; some strategies hold it themselves."""
    return strategy.steps <= LARGEST_COLUMN or isinstance(strategy, Identity | Toeplitz)


def coefficients(strategy: Strategy) -> Array:
    """The first column of a lower-triangular Toeplitz C, trailing zeros cut off."""
    if not column_fits(strategy):
        raise NotProved(
            f"A column of {strategy.steps} entries is longer than the {LARGEST_COLUMN} that are held in memory.",
            hint="non-negative scales let a BLT be measured in one pass without it",
        )
    match strategy:
        case Identity():
            return np.ones(1)
        case BLT():
            return strategy.coefficients()
        case BandedInverse():
            return strategy.strategy_coefficients()
        case Toeplitz(column_normalized=False):
            return strategy.coefficients
    raise NotProved(
        "Columns scaled to norm 1 are no Toeplitz matrix, and theorems for Toeplitz matrices do not hold for them.",
        hint="method='row-sum' gives an upper bound",
    )


def earliest_square(strategy: Strategy, separation: int, count: int, signs: Signs) -> float:
    """||C 1||^2 on the pattern 0, separation, ..., of `count` steps, for a Toeplitz strategy.

    Args:
        strategy: lower triangular Toeplitz.
        separation: b.
        count: k.
        signs: "signed" for C, "absolute" for |C|, "majorant" for the smallest Toeplitz matrix above |C| whose
            coefficients do not increase (for a BLT in one pass: one such matrix).
    """
    if isinstance(strategy, BLT):
        return _buffered_square(strategy, separation, count, signs)
    return column_square(coefficients(strategy), strategy.steps, separation, count, signs)


def norms_decrease(gram: Gram) -> bool:
    """Whether every column is a later one's shift with more entries: of orthogonal columns the earliest are worst."""
    return isinstance(gram, ToeplitzGram) and gram.first_is_worst


def column_square(column: Array, steps: int, separation: int, count: int, signs: Signs) -> float:
    """The same from the first column."""
    c = column if signs == "signed" else np.abs(column)
    if signs == "majorant":
        c = np.maximum.accumulate(c[::-1])[::-1]
    blocks = earliest_blocks(c, steps, separation, count)
    return float(blocks.times @ np.einsum("ij,ij->i", blocks.values, blocks.values))


def check_one_pass(steps: int) -> None:
    """Refuse a BLT that nothing can be proved of in bearable time."""
    if steps > LONGEST_PASS:
        raise NotProved(
            f"A BLT of {steps} steps cannot be measured: one pass over more than 2^34 steps takes too long.",
            hint="plan for fewer steps",
        )


def _buffered_square(strategy: BLT, separation: int, count: int, signs: Signs) -> float:
    from antiphase._kernels import buffered_square

    check_one_pass(strategy.steps)
    scale = strategy.scale if signs == "signed" else np.abs(strategy.scale)
    first = max(1.0, math.fsum(scale)) if signs == "majorant" else 1.0
    return float(buffered_square(strategy.decay, scale, first, strategy.steps, separation, count))


def _trimmed(column: Array) -> Array:
    return column[: np.flatnonzero(column)[-1] + 1]


def _grid(bands: int) -> int:
    """Points on the circle, at least 64 a degree (8 for long columns).

    On N points a trigonometric polynomial of degree d reaches its maximum times cos(pi d / N) (Ehlich, Zeller 1964).
    """
    return 1 << (bands * (64 if bands <= LONG else 8)).bit_length()
