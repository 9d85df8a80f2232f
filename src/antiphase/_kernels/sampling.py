"""Sampling from 128-bit draws with integer arithmetic only, so that every machine gives the same result.

A draw is a row (high, low) of two uint64, which represents the integer high * 2^64 + low in [0, 2^128). Every function
uses a fixed number of draws for each decision, so the outcome of a decision never changes which draws another one uses.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._kernels.compiled import compiled

Draws = NDArray[np.uint64]
Table = NDArray[np.uint64]
Ids = NDArray[np.int64]

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_GUIDE_BITS = 10
_GUIDE_SHIFT = np.uint64(64 - _GUIDE_BITS)


@compiled()
def _high_product(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of the 128-bit product a b."""
    a_low, a_high = a & _MASK, a >> _HALF
    b_low, b_high = b & _MASK, b >> _HALF
    middle = a_high * b_low + ((a_low * b_low) >> _HALF)
    other = a_low * b_high + (middle & _MASK)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF)


@compiled()
def _below(high: Any, low: Any, bound: Any) -> Any:
    """Return floor(draw * bound / 2^128), which is uniform in [0, bound) up to an error of 2^-128 for each outcome."""
    n = np.uint64(bound)
    product_low = high * n
    carry = product_low + _high_product(low, n) < product_low
    return np.int64(_high_product(high, n) + np.uint64(carry))


@compiled()
def _guide(table: Any) -> Any:
    """Return, for each value of a draw's top bits, a lower bound on `invert_cdf` of all draws with these top bits."""
    guide = np.zeros(1 << _GUIDE_BITS, np.int64)
    below = 0
    for top in range(guide.shape[0]):
        while below < table.shape[0] and table[below, 0] < np.uint64(top) << _GUIDE_SHIFT:
            below += 1
        guide[top] = below
    return guide


@compiled()
def uniform_integers(draws: Draws, bound: int) -> Ids:
    """Return one uniform integer in [0, bound) per draw."""
    out = np.empty(draws.shape[0], np.int64)
    for i in range(draws.shape[0]):
        out[i] = _below(draws[i, 0], draws[i, 1], bound)
    return out


@compiled()
def invert_cdf(draws: Draws, table: Table) -> Ids:
    """Return, for each draw, how many thresholds in the ascending table are less than or equal to the draw."""
    out = np.empty(draws.shape[0], np.int64)
    guide = _guide(table)
    for i in range(draws.shape[0]):
        high, low = draws[i, 0], draws[i, 1]
        at = guide[high >> _GUIDE_SHIFT]
        while at < table.shape[0] and (table[at, 0] < high or (table[at, 0] == high and table[at, 1] <= low)):
            at += 1
        out[i] = at
    return out


@compiled()
def _choose(out: Any, draws: Any, at: Any, count: Any, size: Any, base: Any) -> None:
    """Write `count` distinct random numbers in [base, base + size) to out[at:] in ascending order, using draws[at:].

    Uses Floyd's method: for j = size - count, ..., size - 1, choose a uniform number in [0, j], or j itself if that
    number was chosen before. Every set of `count` numbers is equally likely.
    """
    for filled in range(at, at + count):
        j = size - count + filled - at
        chosen = base + _below(draws[filled, 0], draws[filled, 1], j + 1)
        place = filled  # position of `chosen` among the numbers chosen so far, which are sorted
        while place > at and out[place - 1] > chosen:
            place -= 1
        if place > at and out[place - 1] == chosen:
            chosen, place = base + j, filled
        for i in range(filled, place, -1):
            out[i] = out[i - 1]
        out[place] = chosen


@compiled()
def scatter_in_blocks(counts: Ids, draws: Draws, block: int, first: int) -> Ids:
    """Return, for each j, counts[j] distinct random positions from block number first + j, in ascending order.

    Each block has `block` positions. Each returned position uses one draw.
    """
    out = np.empty(draws.shape[0], np.int64)
    at = 0
    for k in range(counts.shape[0]):
        _choose(out, draws, at, counts[k], block, (first + k) * block)
        at += counts[k]
    return out


@compiled()
def random_subset(draws: Draws, population: int) -> Ids:
    """Return a uniformly random subset of [0, population), unsorted, with as many elements as there are draws.

    Uses Floyd's method, with one bit per position to mark the positions that were chosen.
    """
    size = draws.shape[0]
    taken = np.zeros(population // 64 + 1, np.uint64)
    out = np.empty(size, np.int64)
    for i in range(size):
        j = population - size + i
        chosen = _below(draws[i, 0], draws[i, 1], j + 1)
        if (taken[chosen >> 6] >> np.uint64(chosen & 63)) & np.uint64(1):
            chosen = j
        taken[chosen >> 6] |= np.uint64(1) << np.uint64(chosen & 63)
        out[i] = chosen
    return out


@compiled()
def extend_shuffle(order: Ids, first: int, draws: Draws) -> None:
    """Extend a uniformly random order of 0..first-1 to a uniformly random order of 0..first+len(draws)-1, in place.

    Uses the inside-out Fisher-Yates shuffle.
    """
    for k in range(draws.shape[0]):
        i = first + k
        j = _below(draws[k, 0], draws[k, 1], i + 1)
        order[i] = order[j]
        order[j] = i


@compiled()
def shuffle_blocks(table: Ids, first: int, draws: Draws) -> None:
    """Fill the columns of the table from column number `first` on.

    Column j holds the ids j * period, ..., (j + 1) * period - 1 in a uniformly random order, where the period is the
    number of rows.
    """
    period = table.shape[0]
    order = np.empty(period, np.int64)
    for block in range(draws.shape[0] // period):
        extend_shuffle(order, 0, draws[block * period : (block + 1) * period])
        for slot in range(period):
            table[slot, first + block] = (first + block) * period + order[slot]


@compiled()
def group_by_key(keys: Ids | NDArray[np.int32], groups: int) -> tuple[Ids, Ids]:
    """Return (order, starts), where order[starts[g] : starts[g + 1]] are the positions of key g in ascending order."""
    starts = np.zeros(groups + 1, np.int64)
    for key in keys:
        starts[key + 1] += 1
    for g in range(groups):
        starts[g + 1] += starts[g]
    order = np.empty(keys.shape[0], np.int64)
    fill = starts[:-1].copy()
    for i in range(keys.shape[0]):
        order[fill[keys[i]]] = i
        fill[keys[i]] += 1
    return order, starts


@compiled()
def join_window(
    ids: Ids, gaps: Ids, waiting: Ids, eligible: NDArray[np.int32], first: int, separation: int
) -> tuple[Ids, NDArray[np.int32], int]:
    """Find the examples that join (take part) within a window of `separation` steps.

    An offset is a number of steps from the start of the window. The example ids[i] becomes eligible at offset 0, or at
    offset eligible[j] if ids[i] equals waiting[j]. It then waits gaps[i] steps, and joins if the resulting offset is
    inside the window. `ids` and `waiting` are in ascending order. `waiting` is read from position `first` on.

    Returns:
        The ids that join, the offsets at which they join, and the position in `waiting` where reading stopped.
    """
    joined = np.empty(ids.shape[0], np.int64)
    offsets = np.empty(ids.shape[0], np.int32)
    filled, at = 0, first
    for i in range(ids.shape[0]):
        while at < waiting.shape[0] and waiting[at] < ids[i]:
            at += 1
        offset = gaps[i]
        if at < waiting.shape[0] and waiting[at] == ids[i]:
            offset += eligible[at]
        joined[filled] = ids[i]  # written even if this id does not join, to avoid a branch; the next id overwrites it
        offsets[filled] = offset
        filled += int(offset < separation)
    return joined[:filled], offsets[:filled], at


@compiled()
def random_subsets(draws: Draws, sizes: Ids, limit: int) -> Ids:
    """Return, for each size, a random subset of 0..size-1 with min(size, limit) numbers. The subsets are concatenated.

    The numbers of each subset are in ascending order. One draw is reserved for each returned number, even if this draw
    is not used.
    """
    kept = np.minimum(sizes, limit)
    out = np.empty(kept.sum(), np.int64)
    at = 0
    for r in range(sizes.shape[0]):
        if sizes[r] <= limit:
            for i in range(sizes[r]):
                out[at + i] = i
        else:
            _choose(out, draws, at, limit, sizes[r], 0)
        at += kept[r]
    return out
