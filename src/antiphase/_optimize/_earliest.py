"""Sensitivity of a Toeplitz strategy under one pattern, with its gradient, whatever the number of steps.

For the earliest pattern, 0, b, ..., (k - 1) b, cut C u into blocks of b entries: block m is the sum of the blocks
m - k + 1 to m of the coefficients. All blocks from the last one of the coefficients to the last participation are
equal, and are counted instead of computed.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array


def earliest_square(coefficients: Array, steps: int, separation: int, count: int) -> tuple[float, Array]:
    """|C u|^2 for the earliest pattern, and its gradient.

    **Guarantee**: it is the squared sensitivity where there are at most `separation` coefficients (columns of a
    pattern are then orthogonal, and later ones are cut shorter), and where the coefficients are non-negative and
    non-increasing.

    Reference: Kalinin and Lampert 2024, Thm 2; Choquette-Choo et al. 2023 (amplified banded), Thm 2.

    >>> earliest_square(np.array([1.0, 0.5]), steps=4, separation=3, count=2)[0]
    2.25
    """
    b, blocks = separation, -(-len(coefficients) // separation)
    last = -(-steps // b) - 1
    sums = np.zeros((blocks + 1, min(b, len(coefficients))))
    sums[1:].reshape(-1)[: len(coefficients)] = coefficients
    sums.cumsum(axis=0, out=sums)
    index, times = _distinct(blocks, count, last)
    high, low = np.minimum(index + 1, blocks), np.clip(index + 1 - count, 0, blocks)
    v = sums[high] - sums[low]
    v[index == last, steps - last * b :] = 0.0
    weighted = 2.0 * times[:, None] * v
    back = np.zeros_like(sums)
    np.add.at(back, high, weighted)
    np.subtract.at(back, low, weighted)
    gradient = back[:0:-1].cumsum(axis=0)[::-1].reshape(-1)[: len(coefficients)]
    return float(0.5 * np.vdot(weighted, v)), gradient


def adjacent_square(coefficients: Array, count: int) -> tuple[float, Array]:
    """|C u|^2 for shuffled epochs with every second pair of epochs meeting in adjacent steps, and its gradient.

    k rho_0 + 2 floor(k / 2) rho_1, with rho the autocorrelation of the coefficients, for at most as many coefficients
    as an epoch has steps. A guide for the search only: the loss reported is that of the worst pattern.

    >>> adjacent_square(np.array([1.0, 0.5]), count=2)[0]
    3.5
    """
    c, pairs = coefficients, 2.0 * (count // 2)
    neighbours = np.pad(c[1:], (0, 1)) + np.pad(c[:-1], (1, 0))
    gradient = 2.0 * count * c + pairs * neighbours
    return float(0.5 * np.einsum("i,i", c, gradient)), gradient


def _distinct(blocks: int, count: int, last: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Array]:
    """The blocks of C u that differ, and how often each occurs; the last, cut short, stands on its own."""
    rising = np.arange(min(blocks, last))
    falling = np.arange(max(count, blocks), min(count + blocks - 1, last))
    equal = max(0, min(count, last) - max(blocks, 1))
    index = np.concatenate([rising, falling, [last]])
    times = np.ones(len(index))
    if equal:
        times[blocks - 1] += equal
    return index, times
