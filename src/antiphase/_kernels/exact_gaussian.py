"""Draws of floor(N(0, sigma^2)) from random words, decided by integer comparisons only.

`antiphase._noise.exact_gaussian` describes the method and builds the tables. A draw takes three words of 64 bits, which
are the first bits of three uniform numbers. U chooses a cell of [0, infinity), V chooses a position within the cell,
and W accepts or rejects the position. One bit of the word of V is the sign, so the word holds only 63 bits of V. The
kernel decides a comparison only if the outcome is the same for all possible later bits. It leaves rejected and
undecided draws to the caller.

In cell k, the acceptance probability is exp(-E) with E = H V (2 k + V) and H = width^2 / (2 sigma^2). It is computed in
fixed point with an error below 2^-44:

| number | fractional bits | error |
|---|---|---|
| M = 2 k + V, below 2^13 | 50 | below 2^-50, from cutting V to 50 bits |
| q = V M | 49 | 2^-50 from M, 2^-49 from cutting q, 2^13 * 2^-63 from later bits of V; in total below 2^-47 |
| E = H q, below 1/16 | 64 | H * 2^-47 + q * 2^-64 + 2^-64 <= 2^-48 + 2^-51 + 2^-64, below 2^-47 |
| exp(-E), by its series up to E^8 | 63 | 2^-47 from E, E^9 / 9! < 2^-54 from the series, 8 * 2^-63 from rounding |
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from antiphase._kernels.compiled import compiled
from antiphase._kernels.wide import multiply_unsigned

TILE = 64
WORDS = 3 * TILE  # words of a tile: all U, then all V with the sign as lowest bit, then all W
GUIDE_BITS = 12
ACCEPTED, REJECTED, UNDECIDED = 0, 1, 2

U = np.uint64
ONE = U(1)
GUIDE_SHIFT = U(64 - GUIDE_BITS)
LARGEST = U(0xFFFFFFFFFFFFFFFF)
BIT_63 = U(1 << 63)
BELOW_63 = U((1 << 63) - 1)
MARGIN = U(1 << 19)  # 2^-44 in a number with 63 fractional bits
LARGE_EXPONENT = U(1 << 45)  # high word of E = 1/16 with 113 fractional bits
TERMS = 8

Words = NDArray[np.uint64]
Guide = NDArray[np.int32]
Draws = NDArray[np.int64]


@njit(inline="always", error_model="numpy")
def _accepts(cell: Any, place: Any, w: Any, half_square: Any) -> int:
    """Compare W (64 bits) with exp(-E), where E depends on the position V (63 bits).

    Returns ACCEPTED if W < exp(-E) for all possible later bits of V and W, REJECTED if W >= exp(-E) for all of them,
    and UNDECIDED otherwise.
    """
    m = (U(2 * cell) << U(50)) + (place >> U(13))
    q = multiply_unsigned(place, m)[0]
    high, low = multiply_unsigned(q, half_square)
    if high >= LARGE_EXPONENT:
        return UNDECIDED
    e = (high << U(15)) | (low >> U(49))
    total = BIT_63
    for i in range(TERMS, 0, -1):
        total = BIT_63 - multiply_unsigned(e, total)[0] // U(i)
    place_of_w = w >> ONE
    if place_of_w + ONE + MARGIN <= total:
        return ACCEPTED
    return REJECTED if place_of_w >= total + MARGIN else UNDECIDED


@njit(inline="always", error_model="numpy")
def _decide(u: Any, v: Any, w: Any, table: Words, guide: Guide, width: Any, half_square: Any) -> tuple[int, Any]:
    """Return (ACCEPTED, the draw), or (REJECTED or UNDECIDED, 0)."""
    if u == LARGEST:
        return UNDECIDED, 0
    cell = guide[u >> GUIDE_SHIFT]
    while table[cell, 0] <= u:
        cell += 1
    if cell > 0 and table[cell - 1, 0] == u:
        return UNDECIDED, 0
    place = v >> ONE
    if w >= table[cell, 1]:
        found = _accepts(cell, place, w, half_square)
        if found != ACCEPTED:
            return found, 0
    high, low = multiply_unsigned(place, width)
    if (low & BELOW_63) + width > BIT_63:
        return UNDECIDED, 0
    distance = np.int64(cell) * np.int64(width) + np.int64((high << ONE) | (low >> U(63)))
    return ACCEPTED, (-distance - 1 if v & ONE else distance)


@compiled(nogil=True, error_model="numpy")
def exact_draws(
    words: Words, table: Words, guide: Guide, width: int, half_square: int, out: Draws, open_draws: Draws
) -> int:
    """Fill each complete tile of `out` from WORDS words; return the number of rejected and undecided draws.

    Args:
        words: random words.
        table: two integers for each cell. The first is T with T <= 2^64 P(cell or an earlier one) <= T + 1. The second
            is at most 2^64 exp(-H (2 cell + 1)), so that any position in the cell is accepted if W is below it.
        guide: for each value of the highest GUIDE_BITS bits of U, the first possible cell.
        width: width of a cell.
        half_square: floor(2^64 H), where H = width^2 / (2 sigma^2).
        out: receives the draws; 0 for rejected and undecided draws.
        open_draws: receives 2 i for each rejected draw i, and 2 i + 1 for each undecided one. It has the same length as
            `out`.
    """
    count = 0
    for tile in range(out.shape[0] // TILE):
        given, made = tile * WORDS, tile * TILE
        for p in range(TILE):
            u, v, w = words[given + p], words[given + TILE + p], words[given + 2 * TILE + p]
            found, value = _decide(u, v, w, table, guide, width, half_square)
            out[made + p] = value
            if found != ACCEPTED:
                open_draws[count] = 2 * (made + p) + (found == UNDECIDED)
                count += 1
    return count


@compiled(nogil=True, error_model="numpy")
def exact_retries(
    words: Words, table: Words, guide: Guide, width: int, half_square: int, out: Draws, found: Draws
) -> None:
    """Decide one draw for each row of `words`. A row holds the words of U, V and W, and an unused word.

    `found` receives ACCEPTED, REJECTED or UNDECIDED for each draw.
    """
    for i in range(out.shape[0]):
        found[i], out[i] = _decide(words[i, 0], words[i, 1], words[i, 2], table, guide, width, half_square)
