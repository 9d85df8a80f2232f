"""Checks that all numbers of lattice noise fit into 62 bits, except with a negligible probability.

In every coordinate, the noise is y = N (z + r), where N is the noising matrix. The draws are z = floor(Z), where Z has
n independent normal entries with standard deviation sigma. So |z_t - Z_t| < 1. The vector r stands for the rounding in
the recursion, and |r_t| <= K / 2, where K is `rounding_factor`. Let v be the norm of row t of N. Then
|y_t| <= |(N Z)_t| + (1 + K / 2) v sqrt(n), and |(N Z)_t| exceeds END_OF_TAIL * v * sigma with probability at most
exp(-END_OF_TAIL^2 / 2). Both bounds also hold for a buffer of a BLT, if v is the norm of the row that maps z to the
buffer. In every step, a buffer is rounded to f fractional bits. Together, these roundings change a buffer by at most
2^-f min(n, 1 / (1 - decay)) / 2. The norms are computed in float64, and `SAFETY` covers the rounding errors of this
computation.

If a number does not fit, the noise differs from the noise in the proof. So the probability of this event is added to
delta. For floating-point noise, whose draws are bounded, the probability of larger draws is added in the same way
(`antiphase._run.tail`).
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved, Refused
from antiphase._lattice.integers import IntegerBuffers, IntegerForm, IntegerRestart, IntegerSum
from antiphase._lattice.rounding import lifetimes, rounding_factor
from antiphase.strategies import Buffers, Feedback, MovingSum, Strategy

END_OF_TAIL = 54.0  # in standard deviations; the probability of a larger value is added to delta
SAFETY = 2.0  # factor that covers rounding errors of the norms
LARGEST = 2.0**61  # limit for the absolute value of every number
LARGEST_WORK = 1 << 34  # maximum number of multiplications to compute the norms


def check_range(strategy: Strategy, form: IntegerForm, sigma: int, fraction_bits: int) -> None:
    """Raise `Refused` if noise with this sigma might not fit into 62 bits."""
    found = largest_number(form, sigma, fraction_bits)
    if not found <= LARGEST:
        raise Refused(
            f"Lattice noise of this {type(strategy).__name__} does not fit into 64-bit integers. Numbers of up to "
            f"2^{math.log2(found) if found < math.inf else math.inf:.1f} are possible, and 2^61 is the limit.",
            hint="use a coarser grid, or a strategy whose inverse does not grow from step to step",
        )


def largest_number(form: IntegerForm, sigma: int, fraction_bits: int) -> float:
    """Return a bound on the absolute values of all numbers of a run.

    `log_overflow` bounds the probability that a number exceeds this bound.
    """
    inner = form.inner if isinstance(form, IntegerRestart) else form
    with np.errstate(all="ignore"):
        norm, steps = _norm(inner) * 2.0**fraction_bits, inner.recursion.steps
        rounding = (1.0 + rounding_factor(inner, fraction_bits) / 2.0) * math.sqrt(steps)
        found = SAFETY * norm * (END_OF_TAIL * sigma + rounding)
    if isinstance(inner, IntegerBuffers):
        found += float(lifetimes(inner.recursion).max())
    return math.inf if math.isnan(found) else found


def log_overflow(strategy: Strategy, entries: int) -> float:
    """Return the logarithm of a bound on the probability that any number of a run exceeds `largest_number`."""
    recursion = strategy.recursion()
    numbers = recursion.rows * entries * (2 + recursion.memory_copies)
    return math.log(max(numbers, 1)) - END_OF_TAIL**2 / 2.0 + 1e-10


def _norm(form: IntegerSum | IntegerBuffers) -> float:
    """Return the largest norm of a row of the matrix that maps z to the outputs, or to the buffers of a BLT."""
    if isinstance(form, IntegerBuffers):
        return _buffers(form.recursion)
    recursion = form.recursion
    if isinstance(recursion, MovingSum):
        return float(np.linalg.norm(recursion.coefficients))
    if recursion.steps * recursion.bands > LARGEST_WORK:
        raise NotProved(
            f"The range of lattice noise with {recursion.steps} steps and {recursion.bands} bands takes too long to "
            "compute.",
            hint="use fewer bands or a BLT",
        )
    if recursion.bands == 1:
        return 1.0
    return _toeplitz(recursion) if recursion.is_constant else _banded(recursion)


def _toeplitz(recursion: Feedback) -> float:
    from scipy.signal import lfilter

    impulse = np.zeros(recursion.steps)
    impulse[0] = 1.0
    return float(np.linalg.norm(lfilter([1.0], recursion.table()[0], impulse)))


def _banded(recursion: Feedback) -> float:
    """Return the largest standard deviation of an output y_t if z has standard deviation 1.

    A recursion computes the covariance of the last bands - 1 outputs.
    """
    rows, past = recursion.table(), recursion.bands - 1
    covariance, largest = np.zeros((past, past)), 1.0
    for t in range(recursion.steps):
        with_past = covariance @ rows[t, 1:]
        variance = float(1.0 + rows[t, 1:] @ with_past)
        moved = np.empty_like(covariance)
        moved[1:, 1:] = covariance[:-1, :-1]
        moved[0, 0] = variance
        moved[0, 1:] = moved[1:, 0] = -with_past[:-1]
        covariance, largest = moved, max(largest, variance)
    return math.sqrt(largest)


def _buffers(recursion: Buffers) -> float:
    """Return the largest standard deviation of the outputs and buffers of a BLT if z has standard deviation 1.

    Before step t, the buffers are b = sum_i (D - 1 scale^T)^i 1 z_{t-1-i}, where D is the diagonal matrix of decays and
    1 is the vector of ones.
    """
    one, scale = np.ones(len(recursion.decay)), recursion.scale
    covariance = _gram(np.diag(recursion.decay) - np.outer(one, scale), one, recursion.steps)
    return math.sqrt(max(1.0 + float(scale @ covariance @ scale), float(np.diag(covariance).max())))


def _gram(matrix: Array, start: Array, count: int) -> Array:
    """Return sum_{i < count} M^i s s^T (M^i)^T for M = `matrix`, s = `start`, with O(log count) matrix products."""
    first = np.outer(start, start)
    gram, power = np.zeros_like(first), np.eye(len(start))
    for bit in bin(count)[2:]:
        gram, power = gram + power @ gram @ power.T, power @ power
        if bit == "1":
            gram, power = first + matrix @ gram @ matrix.T, matrix @ power
    return gram
