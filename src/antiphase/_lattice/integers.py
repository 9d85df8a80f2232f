"""The integer form of a recursion, whose coefficients are integers in units of 2^-40.

A recursion says how the noise of a strategy is computed, step by step. It has an integer form if the strategy matrix C
has ones on its diagonal and all coefficients are multiples of 2^-40. Then no coefficient is rounded when noise is
computed, so noise and accounting use exactly the same C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase.strategies import Buffers, Feedback, MovingSum, Recursion, Restart, Strategy

COEFFICIENT_BITS = 40  # coefficients are multiples of 2^-40; the kernels use the same number
LARGEST_SUM = 2.0**20  # largest sum of the absolute coefficients of a step, so that 128-bit sums cannot overflow
SUPPORTED = "Identity, Toeplitz, Banded with a constant diagonal, BLT, BandedInverse, or Stamped of these"
Integers = NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class IntegerSum:
    """A recursion with noise y_t = z_t - round(sum_r c_r h_{t-r}), where h is the past noise y or the past draws z.

    Args:
        recursion: the `Feedback` (h = y) or `MovingSum` (h = z) recursion.
        coefficients: c_1, c_2, ... in units of 2^-40: one row for each step, or a single row for all steps.
    """

    recursion: Feedback | MovingSum
    coefficients: Integers

    @property
    def keeps_draws(self) -> bool:
        """True if h holds the past draws, False if it holds the past noise."""
        return isinstance(self.recursion, MovingSum)

    @property
    def history(self) -> int:
        """Number of past steps that a step depends on."""
        return int(self.coefficients.shape[1])

    def row(self, step: int) -> Integers:
        """Return c_1, c_2, ... of a step, without the coefficients that refer to steps before step 0."""
        row = self.coefficients[step if len(self.coefficients) > 1 else 0]
        return row[: min(step, self.history)]


@final
@dataclass(frozen=True, eq=False)
class IntegerBuffers:
    """The recursion of a BLT: y = z - round(scale . b), then b <- round(decay b) + y. Buffers b have fractional bits.

    Args:
        recursion: the `Buffers` recursion.
        decay: decays in units of 2^-40.
        scale: scales in units of 2^-40.
    """

    recursion: Buffers
    decay: Integers
    scale: Integers


@final
@dataclass(frozen=True, eq=False)
class IntegerRestart:
    """The integer form `inner`, restarted for every block of steps."""

    recursion: Restart
    inner: IntegerSum | IntegerBuffers


IntegerForm = IntegerSum | IntegerBuffers | IntegerRestart


def integer_form(strategy: Strategy) -> IntegerForm:
    """Return the integer form of a strategy's recursion. Raises `NotProved` if there is none.

    >>> from antiphase.strategies import Toeplitz
    >>> integer_form(Toeplitz([1.0, 0.5], 3)).coefficients.tolist() == [[2**39]]
    True
    """
    return _form(strategy, strategy.recursion())


def _form(strategy: Strategy, recursion: Recursion) -> IntegerForm:
    match recursion:
        case Restart():
            inner = _form(strategy, recursion.inner)
            if isinstance(inner, IntegerRestart):
                raise _unsupported(strategy)
            return IntegerRestart(recursion, inner)
        case Feedback(scales=None):
            return IntegerSum(recursion, _tail(strategy, recursion.table(), 1.0))
        case MovingSum():
            return IntegerSum(recursion, _tail(strategy, recursion.coefficients[None], -1.0))
        case Buffers():
            decay, scale = _integers(strategy, recursion.decay), _integers(strategy, recursion.scale)
            return IntegerBuffers(recursion, decay, scale)
    raise _unsupported(strategy)


def _tail(strategy: Strategy, rows: Array, sign: float) -> Integers:
    """Return all but the first coefficient of each row, times `sign`, as integers."""
    if not (rows[:, 0] == 1.0).all():
        raise NotProved(
            f"Lattice noise needs a C with ones on its diagonal. The diagonal of this {type(strategy).__name__} has "
            "other entries.",
            hint="use rounded_strategy(strategy), which divides C by a constant diagonal; for other diagonals there is "
            "no proof",
        )
    return _integers(strategy, sign * rows[:, 1:])


def _integers(strategy: Strategy, values: Array) -> Integers:
    with np.errstate(over="ignore"):  # a sum that overflows is infinite, and exceeds the limit below
        scaled = np.ldexp(np.asarray(values, dtype=np.float64), COEFFICIENT_BITS)
        largest = float(np.abs(values).sum(axis=-1).max(initial=0.0))
    if not largest <= LARGEST_SUM or not (scaled == np.rint(scaled)).all():
        raise NotProved(
            f"Lattice noise needs coefficients that are multiples of 2^-{COEFFICIENT_BITS}, with absolute values that "
            f"add up to at most {LARGEST_SUM:.0f}. The coefficients of this {type(strategy).__name__} do not meet this "
            "condition.",
            hint=f"use rounded_strategy(strategy), which rounds {SUPPORTED}; or floating-point noise (lattice=False)",
        )
    return scaled.astype(np.int64)


def _unsupported(strategy: Strategy) -> NotProved:
    return NotProved(
        f"There is no lattice noise for this {type(strategy).__name__}, because its recursion has no integer form.",
        hint=f"use {SUPPORTED}; or floating-point noise (lattice=False)",
    )
