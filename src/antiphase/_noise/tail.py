"""The far tail of the normals: extra words for the pairs in the smallest cell of u, and the mass still missing.

A pair of normals has the radius sqrt(-2 ln u), and the kernels make u from 63 (float32) or 53 (float64) bits. Left at
that, draws would end at 9.42 or 8.57 standard deviations, with a pair whose bits are all zero: one pair in 2^63 or
2^53. Such a pair gets 2048 more bits X, and

    u = 2^-b (X + 1/2) / 2^2048,     b = 63 or 53.

The radius then reaches 54.11 (float32) and 53.98 (float64). P(u <= s) = s holds at the end of every cell, old and new,
so P(|z| > t) is that of a normal beyond 9.35 (float32) and 8.58 (float64), up to where the last of the new cells shows.

**Addresses.** Pair p of tile i of a row takes its extra bits from the 16 blocks from 2^63 + 16 (32 i + p) on, in the
same row of the same leaf's key. A leaf has at most 2^60 entries, so 2^59 pairs, and its other words are in blocks below
2^59: no block is ever used for two things. The extra bits are a function of the pair's address, so it does not matter
how a leaf is cut, nor how often a pair is made.

**What is missing.** u below 2^-(b + 2048) is not resolved any further: the last of the new cells is one point. Take an
ideal vector z of normals, made from real u, and round each pair as the kernels do, except for pairs with u in that
last cell, which stay as they are. The noise of a run has the same distribution except where a pair falls into that
cell, so its total variation distance to this rounded ideal is at most

    (number of pairs) 2^-(b + 2048) <= (number of draws) 2^-(b + 2048) = exp(`log_missing_mass(draws, dtype)`).

All that a run releases is a function of z and the data, also where later gradients depend on earlier outputs, so the
same holds for what it releases.
"""

from __future__ import annotations

import math

from antiphase._noise.source import BLOCK

BITS = {"float32": 63, "float64": 53}  # of u, without extra words; as in the kernels
EXTRA_BITS = 2048
EXTRA_BYTES = EXTRA_BITS // 8
FIRST_BLOCK = 1 << 63
ROUNDING = 1e-10  # more than that of a few logarithms


def extra_block(pair: int) -> int:
    """The first block of the extra words of a pair, counted from the start of its row."""
    return FIRST_BLOCK + EXTRA_BYTES // BLOCK * pair


def tail_uniform(extra: bytes, dtype: str) -> tuple[float, float]:
    """(v, h) with u = v / 2^h and v in [1/2, 1] of a pair in the smallest cell, from its extra words.

    v is correctly rounded; u itself can be too small for float64.

    >>> tail_uniform(bytes(256), "float64") == (0.5, 53 + 2048)
    True
    """
    odd = 2 * int.from_bytes(extra, "little") + 1
    return odd / (1 << odd.bit_length()), float(BITS[dtype] + EXTRA_BITS + 1 - odd.bit_length())


def log_missing_mass(draws: int, dtype: str) -> float:
    """ln of a bound on the total variation distance between so many draws and ideal ones that are rounded.

    >>> log_missing_mass(10**15, "float32") < -1400
    True
    """
    return math.log(max(draws, 1)) - (BITS[dtype] + EXTRA_BITS) * math.log(2.0) + ROUNDING


def end_of_tail(dtype: str) -> float:
    """The largest radius, and so the largest absolute value of a draw, up to rounding.

    >>> round(end_of_tail("float32"), 2), round(end_of_tail("float64"), 2)
    (54.11, 53.98)
    """
    return math.sqrt(2.0 * (BITS[dtype] + EXTRA_BITS + 1) * math.log(2.0))
