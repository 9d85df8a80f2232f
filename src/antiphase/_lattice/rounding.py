"""How much the rounding of lattice noise adds to the sensitivity: at most K sqrt(d R) grid units.

d is the number of coordinates, R the number of rows of C in which a rounding can differ between neighbouring data sets,
and K bounds such a difference; docs/lattice-noise.md has the proofs.

| noise | K | R, for k participations in n steps |
|---|---|---|
| feedback over past outputs, b bands | 1 | k (b - 1), at most n - 1 |
| buffers with f fractional bits | 1 + 2^-f sum_j abs(scale_j) min(n, 1 / (1 - decay_j)) | n - 1 |
| moving sum over past draws | sum of the absolute entries of the first column of C | n - 1 |
| restarted for each block of m steps | as for one block | as for one block, times the number of blocks, at most k |
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._lattice.integers import IntegerBuffers, IntegerForm, IntegerRestart, IntegerSum
from antiphase.strategies import Buffers, Feedback

ROUNDING = 1.0 + 1e-12
SERIES_ROUNDING = 1.001  # generous factor for the rounding errors of a computed first column of C


def rounding_term(form: IntegerForm, count: int, entries: int, fraction_bits: int) -> float:
    """Return K sqrt(d R), rounded up, for at most `count` participations. It is 0 if C is diagonal."""
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
    from scipy.signal import lfilter

    impulse = np.zeros(form.recursion.steps)
    impulse[0] = 1.0
    with np.errstate(all="ignore"):
        column = lfilter([1.0], form.recursion.coefficients, impulse)  # type: ignore[union-attr]
        return float(np.abs(column).sum()) * SERIES_ROUNDING


def lifetimes(recursion: Buffers) -> Array:
    """Return min(n, 1 / (1 - decay)) for each buffer: the sum of all powers of its decay, or a bound on it."""
    with np.errstate(divide="ignore"):
        return np.minimum(1.0 / (1.0 - recursion.decay), float(recursion.steps)) * ROUNDING


def _history(form: IntegerSum | IntegerBuffers) -> int:
    """Return the number of past steps with a coefficient that is not zero, counted from the newest."""
    if isinstance(form, IntegerBuffers):
        return form.recursion.steps - 1
    used = np.flatnonzero(form.coefficients.any(axis=0))
    return int(used[-1]) + 1 if len(used) else 0
