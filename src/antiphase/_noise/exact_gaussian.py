"""Exact draws of floor(Z), Z ~ N(0, sigma^2), for a positive integer sigma, without floating-point arithmetic.

**Method.** This is rejection sampling, following Karney (2016). Uniform random numbers are compared with exact
probabilities, and their bits are drawn only as comparisons need them. Split [0, infinity) into cells of width w. The
width is sigma / 256, rounded down to an integer, but at least 1. Cell k = 0, 1, ... is [k w, (k + 1) w). Let
H = w^2 / (2 sigma^2), and let U, V and W be independent and uniform on [0, 1).

1. U chooses the cell k with probability e_k / (e_0 + e_1 + ...), where e_k = exp(-H k^2).
2. V chooses the position y = k w + V w within the cell.
3. Accept y if W < exp(-E) with E = H V (2 k + V) = (y^2 - (k w)^2) / (2 sigma^2); otherwise start again.
4. A fair bit chooses the sign. Return floor(y) for +y and floor(-y) = -floor(y) - 1 for -y.

The density of an accepted y is proportional to e_k exp(-E) = exp(-y^2 / (2 sigma^2)), so +-y is N(0, sigma^2), and the
result is exactly distributed as floor(Z). (V w is an integer with probability 0.) With 256 cells per sigma, about one
draw in 600 is rejected.

**Lazy bits.** U, V and W are infinite strings of random bits. The compiled kernel sees only their first 64, 63 and 64
bits. It decides a comparison only if the outcome is the same for all possible later bits. This leaves a draw undecided
with a probability of about 2^-52 + w * 2^-63. The class `Trial` then continues with more bits and with intervals of
rational numbers, until every comparison is decided. The result is a function of the infinite strings, so it does not
matter whether the kernel or `Trial` decides. The tables of the kernel do not make the result less exact. They hold
integer bounds on 2^64 times probabilities, and the kernel decides a comparison only if these bounds prove its outcome.

**Addresses.** Each entry i of a row of the white noise z has its own random words. The address of a word consists of
the two 64-bit counter fields of `source.py`: the row field and the number of an AES block.

    row field   attempt (11 bits) | chunk (12 bits) | row (40 bits)
    block       attempt 0, chunk 0: blocks 96 t, ..., 96 t + 95 for tile t, which has 64 entries
                all others: blocks 2 i and 2 i + 1 for entry i

Attempt a is the a-th repetition after a rejection. Chunk c > 0 holds the c-th group of 64 more bits of U, V and W. So
no block is used for two purposes. If the attempts (2^11) or chunks (2^12) run out, an error is raised. The probability
of this is below 2^-10000.

Reference: Karney 2016, "Sampling exactly from the normal distribution"; the lazy comparison of bits is due to von
Neumann 1951.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._errors import AntiphaseError
from antiphase._noise.exact_exp import Interval, ceil_divided, exp_minus, times
from antiphase._noise.source import BLOCK, LARGEST, Source
from antiphase._noise.tiles import TILE, TiledDraws

GUIDE_BITS = 12
TILE_BYTES = 24 * TILE
TILE_BLOCKS = TILE_BYTES // BLOCK
TILES_AT_ONCE = LARGEST // TILE_BYTES // 2
CHUNK_BYTES = 32  # three words, and an unused one
CELLS = 256  # number of cells per sigma
LARGEST_SIGMA = 1 << 54  # up to this sigma, V has more bits than the width of a cell, and 64 sigma fits into 61 bits
LARGEST_DRAW = 1 << 61  # largest absolute value of a draw, more than 100 sigma
ROW_BITS, CHUNK_BITS, ATTEMPT_BITS = 40, 12, 11
TABLE_BITS = 128
REJECTED = 1  # the kernel's result for a rejected draw; 0 is accepted, 2 is undecided
Integers = NDArray[np.int64]
ChunkOf = Callable[[int, int], tuple[int, int, int]]  # maps (attempt, chunk) to the words of U, V and W


def row_field(row: int, attempt: int = 0, chunk: int = 0) -> int:
    """Return the row field of the counter, as defined in the module docstring."""
    if not (0 <= row < 1 << ROW_BITS and attempt < 1 << ATTEMPT_BITS and chunk < 1 << CHUNK_BITS):
        raise AntiphaseError(
            f"There are no random words for row {row}, attempt {attempt}, chunk {chunk}.",
            hint="use at most 2^40 steps; with random words, attempts and chunks never run out",
        )
    return attempt << (CHUNK_BITS + ROW_BITS) | chunk << ROW_BITS | row


def cell_width(sigma: int) -> int:
    """Return the width of a cell, w."""
    return max(sigma // CELLS, 1)


@final
@dataclass(frozen=True)
class Cells:
    """Bounds on e_0 + ... + e_k for each cell k, and on the sum over all cells, in units of 2^-bits.

    The upper bound of `total` includes the cells after the last one in `sums`.
    """

    bits: int
    sums: tuple[Interval, ...]
    total: Interval

    def cumulative(self, cell: int, bits: int) -> Interval:
        """Return bounds on 2^bits times the probability that U chooses `cell` or an earlier cell."""
        low, high = self.sums[cell]
        return (low << bits) // self.total[1], ceil_divided(high << bits, self.total[0])


@lru_cache(maxsize=64)
def cells_of(sigma: int, bits: int) -> Cells:
    """Return the sums of e_k = q^(k^2) with q = exp(-H), computed by multiplication: e_(k+1) = e_k q^(2 k + 1)."""
    half_square = Fraction(cell_width(sigma) ** 2, 2 * sigma**2)
    one = (1 << bits, 1 << bits)
    term, step, square = one, exp_minus(half_square, bits), exp_minus(2 * half_square, bits)
    low = high = 0
    sums = []
    while term[1] > 1:
        low, high = low + term[0], high + term[1]
        sums.append((low, high))
        term, step = times(term, step, bits), times(step, square, bits)
    # The omitted terms add up to at most term * (1 + step + step^2 + ...), because `step` decreases from term to term.
    rest = ceil_divided(term[1] << bits, (1 << bits) - step[1])
    return Cells(bits, tuple(sums), (low, high + rest))


@final
@dataclass(frozen=True)
class Tables:
    """The tables of the kernel for one sigma; see `antiphase._kernels.exact_draws`."""

    table: NDArray[np.uint64]
    guide: NDArray[np.int32]
    width: np.uint64
    half_square: np.uint64


@lru_cache(maxsize=64)
def tables_of(sigma: int) -> Tables:
    """Return the tables for a sigma from 1 to LARGEST_SIGMA."""
    width = cell_width(sigma)
    half_square = Fraction(width**2, 2 * sigma**2)
    thresholds = _thresholds(sigma)
    squeeze = _squeeze(half_square, len(thresholds))
    starts = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - GUIDE_BITS)
    first = np.array(thresholds, dtype=np.uint64)
    table = np.ascontiguousarray(np.stack([first, np.array(squeeze, dtype=np.uint64)], axis=1))
    guide = np.searchsorted(first, starts, side="right").astype(np.int32)
    return Tables(table, guide, np.uint64(width), np.uint64((half_square.numerator << 64) // half_square.denominator))


def _thresholds(sigma: int) -> list[int]:
    """Return integers T_k with T_k <= 2^64 P(cell k or an earlier one) <= T_k + 1, up to the first that is 2^64 - 1.

    So the cell is at most k if the first word of U is below T_k, and larger than k if the word is above T_k.
    """
    bits = TABLE_BITS
    while True:
        cells, found = cells_of(sigma, bits), []
        for k in range(len(cells.sums)):
            low, high = cells.cumulative(k, 64)
            if min(high, 1 << 64) - low > 1:
                break  # not accurate enough
            found.append(low)
            if low == (1 << 64) - 1:
                return found
        bits *= 2


def _squeeze(half_square: Fraction, count: int) -> list[int]:
    """Return, for k = 0, ..., count - 1, an integer that is at most 2^64 exp(-H (2 k + 1)) and below 2^64.

    If the first word of W is below this integer, every position in cell k is accepted.
    """
    bits = 64 + TABLE_BITS
    value, square = exp_minus(half_square, bits)[0], exp_minus(2 * half_square, bits)[0]
    found = []
    for _ in range(count):
        found.append(min(value >> TABLE_BITS, (1 << 64) - 1))
        value = value * square >> bits
    return found


@final
class Trial:
    """One attempt at a draw, which reads as many bits as it needs.

    Args:
        sigma: standard deviation of the draws, an integer.
        chunk: function that maps the number of a chunk to its 64-bit words of U, V and W.
    """

    def __init__(self, sigma: int, chunk: Callable[[int], tuple[int, int, int]]) -> None:
        self._sigma, self._chunk = sigma, chunk
        self._width = cell_width(sigma)
        self._half_square = Fraction(self._width**2, 2 * sigma**2)

    def draw(self) -> int | None:
        """Return the draw; None if it is rejected."""
        u, v, w = self._chunk(0)
        negative, v, chunks = v & 1, v >> 1, 1
        while True:
            bits = 64 * chunks
            accepted = floor = None
            cell = self._cell(u, bits)
            if cell is not None:
                accepted = self._accepts(cell, v, w, bits)
                floor = self._floor(v, bits - 1)
            if accepted is False:
                return None
            if cell is not None and accepted and floor is not None:
                distance = cell * self._width + floor
                return -distance - 1 if negative else distance
            more = self._chunk(chunks)
            u, v, w = (before << 64 | word for before, word in zip((u, v, w), more, strict=True))
            chunks += 1

    def _cell(self, u: int, bits: int) -> int | None:
        """Return the cell k with P(earlier cells) <= U < P(k or earlier cells); None if more bits are needed."""
        cells = cells_of(self._sigma, bits + TABLE_BITS)
        low, high = -1, len(cells.sums)  # the cell is above `low` and at most `high`
        while high - low > 1:
            middle = (low + high) // 2
            bounds = cells.cumulative(middle, bits)
            if u + 1 <= bounds[0]:
                high = middle
            elif u >= bounds[1]:
                low = middle
            else:
                return None
        return high if high < len(cells.sums) else None

    def _accepts(self, cell: int, v: int, w: int, bits: int) -> bool | None:
        """Return whether W < exp(-H V (2 k + V)); None if more bits are needed. V has one bit fewer than U and W."""
        unit = 1 << (bits - 1)
        nearest, farthest = Fraction(v, unit), Fraction(v + 1, unit)
        if w + 1 <= exp_minus(self._half_square * farthest * (2 * cell + farthest), bits)[0]:
            return True
        if w >= exp_minus(self._half_square * nearest * (2 * cell + nearest), bits)[1]:
            return False
        return None

    def _floor(self, v: int, bits: int) -> int | None:
        """Return floor(V w); None if more bits are needed."""
        first, last = v * self._width >> bits, ((v + 1) * self._width - 1) >> bits
        return first if first == last else None


def exact_draw(sigma: int, chunk: ChunkOf, attempt: int = 0) -> int:
    """Return the first draw that is not rejected, starting with the given attempt."""
    while True:
        found = Trial(sigma, lambda c, a=attempt: chunk(a, c)).draw()  # type: ignore[misc]
        if found is not None:
            if abs(found) > LARGEST_DRAW:
                raise AntiphaseError(f"A draw of {found} with sigma {sigma} is too large.", hint="replace the secret")
            return found
        attempt += 1


@final
class ExactDraws(TiledDraws):
    """Generates draws of floor(N(0, sigma^2)) by address from a source of random words.

    Each thread needs its own object.

    **Guarantee**: if the words are random, the draws are independent, and each has exactly this distribution.
    """

    def __init__(self, source: Source, sigma: int) -> None:
        super().__init__(np.dtype(np.int64), TILES_AT_ONCE)
        self._source, self._sigma = source, check_sigma(sigma)
        self._tables = tables_of(sigma)
        self._words = np.empty(TILES_AT_ONCE * TILE_BYTES, dtype=np.uint8)
        self._open = np.empty(TILES_AT_ONCE * TILE, dtype=np.int64)

    def _tiles(self, leaf: int, row: int, tile: int, out: Integers) -> None:
        from antiphase._kernels import exact_draws

        words = self._words[: len(out) // TILE * TILE_BYTES]
        self._source.words(leaf, row_field(row), tile * TILE_BLOCKS, words)
        tables, typed = self._tables, words.view(np.uint64)
        count = exact_draws(typed, tables.table, tables.guide, tables.width, tables.half_square, out, self._open)
        if count:
            self._complete(leaf, row, tile * TILE, typed, out, self._open[:count])

    def _complete(
        self, leaf: int, row: int, start: int, words: NDArray[np.uint64], out: Integers, open_draws: Integers
    ) -> None:
        """Repeat the rejected draws, and decide the undecided ones with more bits."""
        places, undecided = open_draws >> 1, (open_draws & 1).astype(bool)
        attempt = 0
        while True:
            for i in places[undecided].tolist():
                out[i] = exact_draw(self._sigma, self._chunks(leaf, row, start, i, words), attempt)
            places = places[~undecided]
            if not len(places):
                return
            attempt += 1
            found = self._retry(leaf, row_field(row, attempt), start, places, out)
            places, undecided = places[found > 0], (found[found > 0] > REJECTED)

    def _retry(self, leaf: int, field: int, start: int, places: Integers, out: Integers) -> Integers:
        from antiphase._kernels import exact_retries

        words = np.empty((len(places), CHUNK_BYTES), dtype=np.uint8)
        for k, i in enumerate(places.tolist()):
            self._source.words(leaf, field, 2 * (start + i), words[k])
        values, found = np.empty(len(places), dtype=np.int64), np.empty(len(places), dtype=np.int64)
        tables, typed = self._tables, words.view(np.uint64)
        exact_retries(typed, tables.table, tables.guide, tables.width, tables.half_square, values, found)
        out[places] = values
        return found

    def _chunks(self, leaf: int, row: int, start: int, i: int, words: NDArray[np.uint64]) -> ChunkOf:
        def chunk(attempt: int, number: int) -> tuple[int, int, int]:
            if attempt == number == 0:
                tile, p = divmod(i, TILE)
                u, v, w = words.reshape(-1, 3, TILE)[tile, :, p].tolist()
            else:
                given = np.empty(CHUNK_BYTES, dtype=np.uint8)
                self._source.words(leaf, row_field(row, attempt, number), 2 * (start + i), given)
                u, v, w, _ = given.view(np.uint64).tolist()
            return u, v, w

        return chunk


def check_sigma(sigma: Any) -> int:
    """Return `sigma`. Raises `ValueError` unless it is an integer from 1 to LARGEST_SIGMA."""
    if isinstance(sigma, bool) or not isinstance(sigma, int) or not 1 <= sigma <= LARGEST_SIGMA:
        raise ValueError(f"sigma must be an integer from 1 to 2^54, got {sigma!r}")
    return sigma
