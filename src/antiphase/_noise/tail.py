"""The far tail of the normals: extra random bits for the largest draws, and a bound on the missing probability.

Normals are drawn in pairs (Box-Muller) from random words of 32 or 64 bits (`source.py`). A pair has the radius
sqrt(-2 ln u) with a uniform random number u. The kernels compute u from b = 63 (float32) or b = 53 (float64) random
bits, so each value of u stands for an interval of length 2^-b, called a cell. With these bits alone, the largest draw
would be 9.42 (float32) or 8.57 (float64) standard deviations, for a pair whose b bits are all zero. This happens for
one pair in 2^b. Such a pair gets 2048 more bits, which form an integer X, and

    u = 2^-b (X + 1/2) / 2^2048.

This splits the smallest cell into 2^2048 cells, and the radius can reach 54.11 (float32) or 53.98 (float64). At the
upper end s of every cell, P(u <= s) = s. The upper end of the split cell, u = 2^-b, has a radius just below 9.35
(float32) or 8.58 (float64), so larger draws come only from the 2^2048 small cells. For t above these values, a draw
therefore exceeds t in absolute value with the same probability as a normal number. The only exception is t near the
largest draw, where the width of the last cell, next to u = 0, matters.

**Addresses.** The entries of a leaf (an array of the model) are divided into tiles of 64 entries, that is, 32 pairs. A
row of z is generated with the key of the leaf, which gives a numbered sequence of AES blocks for each row. Pair p of
tile i takes its extra bits from 16 blocks of that sequence, starting with block 2^63 + 16 (32 i + p). A leaf has at
most 2^60 entries, that is, 2^59 pairs. The blocks that give the ordinary words of its pairs have numbers below 2^59. So
no block is ever used for two purposes. The extra bits depend only on the pair's address. They therefore depend neither
on how a leaf is sharded nor on how often a pair is generated.

**Missing mass.** All u below 2^-(b + 2048) fall into the last cell and give the same draw. Take an ideal vector z of
normals, computed from real-valued u. Round each pair as the kernels do, but leave pairs with u in the last cell
unrounded. The draws of a run can be coupled with this vector so that they differ only in pairs whose u is in the last
cell. The total variation distance between the distributions of the draws and of the vector is therefore at most the
probability that any pair has its u in the last cell:

    (number of pairs) 2^-(b + 2048) <= (number of draws) 2^-(b + 2048) = exp(`log_missing_mass(draws, dtype)`).

Everything that a run releases is a function of z and the data, even if later gradients depend on earlier outputs, so
the same bound holds for the releases.
"""

from __future__ import annotations

import math

from antiphase._noise.source import BLOCK

BITS = {"float32": 63, "float64": 53}  # bits of u without extra words; as in the kernels
EXTRA_BITS = 2048
EXTRA_BYTES = EXTRA_BITS // 8
FIRST_BLOCK = 1 << 63
ROUNDING = 1e-10  # larger than the rounding error of a few logarithms


def extra_block(pair: int) -> int:
    """Return the first AES block of the extra bits of a pair, where pairs are counted from the start of the row."""
    return FIRST_BLOCK + EXTRA_BYTES // BLOCK * pair


def tail_uniform(extra: bytes, dtype: str) -> tuple[float, float]:
    """Return (v, h) such that u = v / 2^h with v in [1/2, 1], given the extra bits X of a pair as bytes.

    The result v is correctly rounded. The number u itself can be too small for float64.

    >>> tail_uniform(bytes(256), "float64") == (0.5, 53 + 2048)
    True
    """
    odd = 2 * int.from_bytes(extra, "little") + 1
    return odd / (1 << odd.bit_length()), float(BITS[dtype] + EXTRA_BITS + 1 - odd.bit_length())


def log_missing_mass(draws: int, dtype: str) -> float:
    """Return the logarithm of a bound on the total variation distance between this many draws and rounded ideal draws.

    >>> log_missing_mass(10**15, "float32") < -1400
    True
    """
    return math.log(max(draws, 1)) - (BITS[dtype] + EXTRA_BITS) * math.log(2.0) + ROUNDING


def end_of_tail(dtype: str) -> float:
    """Return the largest absolute value of a draw in standard deviations, up to rounding.

    >>> round(end_of_tail("float32"), 2), round(end_of_tail("float64"), 2)
    (54.11, 53.98)
    """
    return math.sqrt(2.0 * (BITS[dtype] + EXTRA_BITS + 1) * math.log(2.0))
