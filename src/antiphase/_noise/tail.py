"""The far tail of the normals: extra random bits for the largest draws, and a bound on the missing probability.

Normals are drawn in pairs (Box-Muller). A pair has the radius sqrt(-2 ln u) with a uniform random number u. The kernels
compute u from b = 63 (float32) or b = 53 (float64) random bits, so each value of u stands for an interval of length
2^-b, called a cell. With these bits alone, the largest draw would be 9.42 (float32) or 8.57 (float64) standard
deviations, reached if all b bits are zero. If they are, which happens for one pair in 2^b, the pair gets 2048 more
bits X, and

    u = 2^-b (X + 1/2) / 2^2048.

This splits the smallest cell into 2^2048 cells, and the radius can reach 54.11 (float32) or 53.98 (float64).
P(u <= s) = s holds for the end s of every cell. So beyond 9.35 (float32) and 8.58 (float64), P(|z| > t) is that of a
normal, except near the largest draw, where the width of the last cell matters.

**Addresses.** Pair p of tile i of a row takes its extra bits from 16 AES blocks, starting at block
2^63 + 16 (32 i + p), in the same row of the same leaf's key. A leaf has at most 2^60 entries, that is, 2^59 pairs, and
its other words are in blocks below 2^59. So no block is ever used for two purposes. The extra bits depend only on the
pair's address, so they depend neither on how a leaf is sharded nor on how often a pair is generated.

**Missing mass.** All u below 2^-(b + 2048) fall into the last cell and give the same draw. Take an ideal vector z of
normals, computed from real-valued u. Round each pair as the kernels do, but leave pairs with u in the last cell
unrounded. The noise of a run has the same distribution unless a pair falls into the last cell, so its total variation
distance to this rounded ideal vector is at most

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

    v is correctly rounded. u itself is not returned, because it can be too small for float64.

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
