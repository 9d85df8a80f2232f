"""Computes ||C u||^2 for a Toeplitz strategy on the earliest pattern 0, b, ..., (k - 1) b, for any number of steps.

Here b is the separation, k is the number of participations, and u is 1 at the steps of the pattern and 0 elsewhere.
Split C u and the first column of C into blocks of b entries. Block m of C u is the sum of blocks m - k + 1 to m of the
column. All blocks of C u from the last non-zero block of the column to the last participation are equal, so they are
counted instead of computed. For a BLT, the column is not needed, because one pass over the steps with the buffers of
the BLT gives ||C u||^2.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from antiphase._check import Array
from antiphase._errors import NotProved
from antiphase.strategies import Buffers, Indices, Strategy, column_fits

LONGEST_PASS = 1 << 34  # maximum number of steps of a pass, which takes a minute or two and cannot be interrupted
Signs = Literal["signed", "absolute", "majorant"]


def one_pass(strategy: Strategy) -> Buffers | None:
    """Return the recursion of a BLT, for which one pass over the steps gives ||C u||^2; None for any other strategy."""
    recursion = strategy.recursion()
    return recursion if isinstance(recursion, Buffers) else None


def has_column(strategy: Strategy) -> bool:
    """Return whether the first column of C is stored, or short enough to be computed and held in memory."""
    return strategy.stores_column or column_fits(strategy.steps)


def coefficients(strategy: Strategy) -> Array:
    """Return the first column of a lower-triangular Toeplitz C, possibly without its trailing zeros.

    Raises `NotProved` for any other C.
    """
    column = strategy.toeplitz_column()
    if column is None:
        raise NotProved(
            "Theorems about Toeplitz matrices do not apply, because C is not Toeplitz or its columns are normalised.",
            hint="method='row-sum' gives an upper bound",
        )
    return column


def earliest_square(strategy: Strategy, separation: int, count: int, signs: Signs) -> float:
    """Return ||C u||^2 for a Toeplitz strategy, where u is 1 at the `count` steps 0, separation, ... and 0 elsewhere.

    Args:
        strategy: strategy with a lower-triangular Toeplitz C.
        separation: distance between participations, b.
        count: number of participations, k.
        signs: "signed" for C, "absolute" for |C|, "majorant" for the smallest Toeplitz matrix that is at least |C| and
            has non-increasing coefficients. For a BLT, "majorant" uses one such matrix, not necessarily the smallest.
    """
    buffers = one_pass(strategy)
    if buffers is not None:
        return _buffered_square(buffers, separation, count, signs)
    return column_square(coefficients(strategy), strategy.steps, separation, count, signs)


def column_square(column: Array, steps: int, separation: int, count: int, signs: Signs) -> float:
    """Return the result of `earliest_square`, computed from the first column of C."""
    c = column if signs == "signed" else np.abs(column)
    if signs == "majorant":
        c = np.maximum.accumulate(c[::-1])[::-1]
    blocks = earliest_blocks(c, steps, separation, count)
    return float(blocks.times @ np.einsum("ij,ij->i", blocks.values, blocks.values))


def check_one_pass(steps: int) -> None:
    """Raise `NotProved` if a BLT has too many steps for one pass."""
    if steps > LONGEST_PASS:
        raise NotProved(
            f"Computing the sensitivity of a BLT with {steps} steps takes too long. The limit is 2^34 steps.",
            hint="plan for fewer steps",
        )


def _buffered_square(buffers: Buffers, separation: int, count: int, signs: Signs) -> float:
    from antiphase._kernels import buffered_square

    check_one_pass(buffers.steps)
    scale = buffers.scale if signs == "signed" else np.abs(buffers.scale)
    first = max(1.0, math.fsum(scale)) if signs == "majorant" else 1.0
    decay, scale = np.array(buffers.decay), np.array(scale)  # copies, as Numba would compile again for read-only arrays
    return float(buffered_square(decay, scale, first, buffers.steps, separation, count))


class Blocks(NamedTuple):
    """The distinct blocks of C u.

    Block i has the entries `values[i]` and occurs `times[i]` times. It is the sum of blocks `low[i]`, ...,
    `high[i]` - 1 of the coefficients. If there are fewer coefficients than entries in a block, the other entries are
    zero and left out.
    """

    values: Array
    times: Array
    low: Indices
    high: Indices


def earliest_blocks(coefficients: Array, steps: int, separation: int, count: int) -> Blocks:
    """Return the distinct blocks of C u, where u is 1 at the steps of the earliest pattern and 0 elsewhere.

    Args:
        coefficients: the first column of C, without trailing zeros.
        steps: number of steps, n.
        separation: distance between participations, b.
        count: number of participations, k.

    >>> earliest_blocks(np.array([1.0, 0.5]), steps=4, separation=3, count=2).values.tolist()
    [[1.0, 0.5], [1.0, 0.0]]
    """
    c, b = coefficients[:steps], separation
    blocks, last = -(-len(c) // b), -(-steps // b) - 1
    sums = np.zeros((blocks + 1, min(b, len(c))))
    sums[1:].reshape(-1)[: len(c)] = c
    sums.cumsum(axis=0, out=sums)
    index, times = _distinct(blocks, count, last)
    high, low = np.minimum(index + 1, blocks), np.clip(index + 1 - count, 0, blocks)
    values = sums[high] - sums[low]
    values[index == last, steps - last * b :] = 0.0
    return Blocks(values, times, low, high)


def _distinct(blocks: int, count: int, last: int) -> tuple[Indices, Array]:
    """Return the indices of the distinct blocks of C u (see `Blocks`) and how often each occurs.

    The last block, which may be cut short, always has its own entry.

    Args:
        blocks: number of blocks of coefficients.
        count: number of participations, k.
        last: index of the last block of C u.
    """
    rising = np.arange(min(blocks, last))
    falling = np.arange(max(count, blocks), min(count + blocks - 1, last))
    equal = max(0, min(count, last) - max(blocks, 1))
    index = np.concatenate([rising, falling, [last]])
    times = np.ones(len(index))
    if equal:
        times[blocks - 1] += equal
    return index, times
