"""Computes how much the rounding of lattice noise adds to the sensitivity: at most K sqrt(d R) grid units.

Here d is the number of coordinates. R is the number of rows of C (steps) in which the rounding error can differ between
neighbouring data sets, and K bounds the difference in each coordinate of such a row. docs/lattice-noise.md has the
proofs.

| noise | K | R, for k participations in n steps |
|---|---|---|
| feedback over past outputs, b bands | 1 | k (b - 1), but at most n - 1 |
| buffers with f fractional bits | 1 + 2^-f sum_j abs(scale_j) min(n, 1 / (1 - decay_j)) | n - 1 |
| moving sum over past draws | sum of the absolute entries of the first column of C | n - 1 |
| restart for each block of m steps | K of one block | (m - 1) min(k, number of blocks); feedback: at most k (b - 1) |
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase._lattice.integers import IntegerBuffers, IntegerForm, IntegerRestart, IntegerSum
from antiphase.strategies import Buffers, Feedback, MovingSum

ROUNDING = 1.0 + 1e-12
SERIES_ROUNDING = 1.001  # smallest factor that `_column_sum` uses to cover rounding errors in the first column of C
LARGEST_ERROR = 0.1  # largest relative rounding error of the sum of the first column of C


def rounding_term(form: IntegerForm, count: int, entries: int, fraction_bits: int) -> float:
    """Return K sqrt(d R), rounded up, for d = `entries` and k = `count` participations. It is 0 if C is diagonal."""
    inner = form.inner if isinstance(form, IntegerRestart) else form
    blocks = min(form.recursion.repeats, count) if isinstance(form, IntegerRestart) else 1
    rows = inner.recursion.steps - 1
    if isinstance(inner.recursion, Feedback):
        rows = min(blocks * rows, count * _history(inner))
    else:
        rows = blocks * rows if _history(inner) else 0
    return rounding_factor(inner, fraction_bits) * math.sqrt(rows * entries) * ROUNDING if rows else 0.0


def rounding_factor(form: IntegerSum | IntegerBuffers, fraction_bits: int) -> float:
    """Return K, rounded up."""
    if isinstance(form, IntegerBuffers):
        recursion = form.recursion
        weight = float(np.abs(recursion.scale) @ lifetimes(recursion))
        return (1.0 + math.ldexp(weight, -fraction_bits)) * ROUNDING
    if not form.keeps_draws:
        return 1.0
    assert isinstance(form.recursion, MovingSum)
    return _column_sum(form.recursion)


def _column_sum(recursion: MovingSum) -> float:
    """Return the sum of the absolute entries of the first column of C, rounded up.

    Let c be this column, g the first column of N = C^-1, and u = 2^-53. Rounding in the forward substitution changes c
    by at most (bands + 2) u ||c||_1 ||g||_1 ||c||_1 in the 1-norm, to first order. (For the argument, see
    `antiphase._sensitivity.rounding`.) The factor 2 covers the higher orders.
    """
    from scipy.signal import lfilter

    coefficients = recursion.coefficients
    impulse = np.zeros(recursion.steps)
    impulse[0] = 1.0
    with np.errstate(all="ignore"):
        total = float(np.abs(lfilter([1.0], coefficients, impulse)).sum())
        error = 2.0 * (len(coefficients) + 3) * 2.0**-53 * total * float(np.abs(coefficients).sum())
    if not error <= LARGEST_ERROR:
        raise NotProved(
            "The rounding of lattice noise with this BandedInverse cannot be bounded. The absolute entries of a column "
            f"of C add up to about {total:.1e}, and float64 is not precise enough to compute this sum.",
            hint="use a strategy whose C has smaller entries, or floating-point noise (lattice=False)",
        )
    return total * max(SERIES_ROUNDING, 1.0 + error)


def lifetimes(recursion: Buffers) -> Array:
    """Return min(n, 1 / (1 - decay)) for each buffer, a bound on the sum of the first n powers of its decay."""
    with np.errstate(divide="ignore"):
        return np.minimum(1.0 / (1.0 - recursion.decay), float(recursion.steps)) * ROUNDING


def _history(form: IntegerSum | IntegerBuffers) -> int:
    """Return how many steps back the recursion reaches: the largest r with c_r != 0."""
    if isinstance(form, IntegerBuffers):
        return form.recursion.steps - 1
    used = np.flatnonzero(form.coefficients.any(axis=0))
    return int(used[-1]) + 1 if len(used) else 0
