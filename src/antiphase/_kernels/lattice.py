"""Kernels for lattice noise: sums over past noise in exact integers, with one rounding to an integer at the end.

The kernels compute the noise y of a step from a random draw z and a state of past values. The state is an array
state[strip, row, lane] of int64, in which a strip holds LANES entries of the noise vector, as in `correlate.py`.
Coefficients are integers in units of 2^-BITS. Products have 128 bits. No sum overflows as long as the absolute
coefficients add up to less than 2^24 and all numbers in the state are below 2^62 in absolute value.

The kernels that compute a step return True if the absolute value of a new number is LARGEST or more. For the outputs of
a BLT, the limit is LARGEST / 2^(fraction_bits + 1). If a kernel returns True, the caller must stop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._kernels.compiled import compiled
from antiphase._kernels.wide import multiply_add, multiply_unsigned, rounded_shift

BITS = 40  # fractional bits of coefficients
LANES = 128
LARGEST = 1 << 62
I = np.int64  # noqa: E741
U = np.uint64

State = NDArray[np.int64]
Integers = NDArray[np.int64]


@compiled(nogil=True, error_model="numpy")
def integer_sum_step(
    state: State, slots: Integers, coefficients: Integers, newest: int, keeps_input: bool, out: Integers
) -> bool:
    """Replace z in `out` by y = z - round(coefficients . history), and store y (or z) in the state.

    Args:
        state: holds the history, which consists of past y, or of past z if `keeps_input`.
        slots: rows of the state that hold the history.
        coefficients: one for each slot, in units of 2^-BITS.
        newest: row of the state in which to store y or z, or -1 to store nothing.
        keeps_input: whether to store z instead of y.
        out: holds z at first, and then y.
    """
    largest = I(0)
    for strip in range(state.shape[0]):
        part, held = out[strip * LANES : (strip + 1) * LANES], state[strip]
        for i in range(part.shape[0]):
            high, low = I(0), U(0)
            for r in range(slots.shape[0]):
                high, low = multiply_add(high, low, coefficients[r], held[slots[r], i])
            z = part[i]
            y = z - rounded_shift(high, low, BITS)
            if newest >= 0:
                held[newest, i] = z if keeps_input else y
            part[i] = y
            largest |= y ^ (y >> I(63))
    return bool(largest >= I(LARGEST))


@compiled(nogil=True, error_model="numpy")
def integer_buffers_step(state: State, decay: Integers, scale: Integers, fraction_bits: int, out: Integers) -> bool:
    """Compute one step of a BLT: y = z - round(scale . b), then b <- round(decay b) + y for each buffer b.

    Args:
        state: the buffers, in units of 2^-fraction_bits.
        decay: decays, in units of 2^-BITS.
        scale: scales, in units of 2^-BITS.
        fraction_bits: number of fractional bits of the buffers.
        out: holds z at first, and then y.
    """
    largest = largest_y = I(0)
    fraction = I(fraction_bits)
    for strip in range(state.shape[0]):
        part, held = out[strip * LANES : (strip + 1) * LANES], state[strip]
        for i in range(part.shape[0]):
            high, low = I(0), U(0)
            for j in range(decay.shape[0]):
                high, low = multiply_add(high, low, scale[j], held[j, i])
            y = part[i] - rounded_shift(high, low, I(BITS) + fraction)
            part[i] = y
            largest_y |= y ^ (y >> I(63))
            for j in range(decay.shape[0]):
                high, low = multiply_add(I(0), U(0), decay[j], held[j, i])
                b = rounded_shift(high, low, BITS) + (y << fraction)
                held[j, i] = b
                largest |= b ^ (b >> I(63))
    return bool(largest >= I(LARGEST) or largest_y >= I(LARGEST) >> (fraction + I(1)))


@compiled(nogil=True, error_model="numpy")
def largest_and_square(values: NDArray[Any]) -> tuple[float, float]:
    """Return the largest absolute value (NaN if any is NaN) and the sum of the squares, in float64."""
    largest, square = 0.0, 0.0
    for i in range(values.shape[0]):
        value = abs(np.float64(values[i]))
        if not value <= largest:
            largest = value if largest == largest else largest
        square += value * value
    return largest, square


@compiled(nogil=True, error_model="numpy")
def truncated(values: NDArray[Any], factor: float, out: Integers) -> tuple[Any, Any]:
    """Write factor * values, truncated towards zero, to `out`. Return the exact sum of the squares of the results.

    The sum is 2^64 high + low for the returned (high, low). The results must be below 2^62, and their norm below 2^63.
    """
    high, low = U(0), U(0)
    for i in range(values.shape[0]):
        result = I(np.float64(values[i]) * factor)
        out[i] = result
        size = U(result if result >= 0 else -result)
        above, below = multiply_unsigned(size, size)
        low += below
        high += above + (U(1) if low < below else U(0))
    return high, low


@compiled(nogil=True, error_model="numpy")
def add_truncated(values: NDArray[Any], factor: float, total: Integers) -> tuple[Any, Any]:
    """Add factor * values, truncated towards zero, to `total` modulo 2^64. Return the sum of the added squares.

    The sum of the squares of the added integers is exact, and is returned as in `truncated`. A call with -factor
    subtracts exactly the integers that a call with factor adds.
    """
    high, low = U(0), U(0)
    for i in range(values.shape[0]):
        result = I(np.float64(values[i]) * factor)
        total[i] += result
        size = U(result if result >= 0 else -result)
        above, below = multiply_unsigned(size, size)
        low += below
        high += above + (U(1) if low < below else U(0))
    return high, low
