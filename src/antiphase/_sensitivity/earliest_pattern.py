"""C u for the earliest pattern 0, b, ..., (k - 1) b of a Toeplitz strategy, whatever the number of steps.

Cut C u into blocks of b entries: block m is the sum of the blocks m - k + 1 to m of the coefficients. All blocks from
the last one of the coefficients to the last participation are equal, and are counted instead of computed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array

Indices = NDArray[np.int64]


class Blocks(NamedTuple):
    """The blocks of C u that differ.

    Block i has the entries `values[i]` (those beyond the coefficients are zero and left out) and occurs `times[i]`
    times. It is the sum of the blocks `low[i]`, ..., `high[i]` - 1 of the coefficients.
    """

    values: Array
    times: Array
    low: Indices
    high: Indices


def earliest_blocks(coefficients: Array, steps: int, separation: int, count: int) -> Blocks:
    """C u for coefficients that are zero beyond those given.

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
    """The blocks that differ, and how often each occurs; the last, cut short, stands on its own."""
    rising = np.arange(min(blocks, last))
    falling = np.arange(max(count, blocks), min(count + blocks - 1, last))
    equal = max(0, min(count, last) - max(blocks, 1))
    index = np.concatenate([rising, falling, [last]])
    times = np.ones(len(index))
    if equal:
        times[blocks - 1] += equal
    return index, times
