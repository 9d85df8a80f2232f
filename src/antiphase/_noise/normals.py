"""White noise z by address: (row, leaf, flat index in the whole leaf) determines the bits of a standard normal."""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._noise.source import BLOCK, LARGEST, Source
from antiphase._noise.tail import BITS, EXTRA_BYTES, extra_block, tail_uniform

TILE = 64  # normals generated together from whole blocks; as in the kernels, which are imported only when used
PAIRS = TILE // 2
TILE_BYTES = {"float32": 24 * BLOCK, "float64": 32 * BLOCK}
TILES_AT_ONCE = LARGEST // max(TILE_BYTES.values())  # tiles generated at once
FAR_APART = 4  # stretches more than this many widths apart are generated one by one
Noise = NDArray[Any]  # float32 or float64


@final
class Normals:
    """Standard normals by address, generated from a source; each thread needs its own."""

    def __init__(self, source: Source, dtype: np.dtype[Any]) -> None:
        from antiphase._kernels import normals_32, normals_64, tail_pair_32, tail_pair_64

        self._source = source
        self._words = np.empty(TILES_AT_ONCE * TILE_BYTES[dtype.name], dtype=np.uint8)
        self._tile_bytes = TILE_BYTES[dtype.name]
        single = dtype == np.float32
        self._convert: Any = normals_32 if single else normals_64
        self._tail_pair: Any = tail_pair_32 if single else tail_pair_64
        self._typed_words = self._words.view(np.int32 if single else np.uint64)
        self._edge = np.empty(TILES_AT_ONCE * TILE, dtype=dtype)

    def fill(self, leaf: int, row: int, start: int, out: Noise) -> None:
        """Fill `out` with z for entries start, start + 1, ... of the flattened whole leaf."""
        done = 0
        while done < len(out):
            tile, skipped = divmod(start + done, TILE)
            left = len(out) - done
            whole = min(left // TILE, TILES_AT_ONCE)
            if skipped == 0 and whole > 0:
                self._tiles(leaf, row, tile, out[done : done + whole * TILE])
                done += whole * TILE
            else:
                count = min(left, TILES_AT_ONCE * TILE - skipped)
                made = self._edge[: -(-(skipped + count) // TILE) * TILE]
                self._tiles(leaf, row, tile, made)
                out[done : done + count] = made[skipped : skipped + count]
                done += count

    def fill_rows(self, leaf: int, row: int, start: int, stride: int, out: Noise) -> None:
        """Fill the rows of `out` with z for stretches of the flattened whole leaf, `stride` apart."""
        rows, width = out.shape
        together = (TILES_AT_ONCE * TILE - TILE - width) // stride + 1
        if together < 2 or stride > FAR_APART * width + TILE:  # generating the gaps would cost more than the calls
            for i in range(rows):
                self.fill(leaf, row, start + i * stride, out[i])
            return
        for i in range(0, rows, together):
            self._plate(leaf, row, start + i * stride, stride, out[i : i + together])

    def _plate(self, leaf: int, row: int, start: int, stride: int, out: Noise) -> None:
        rows, width = out.shape
        tile, skipped = divmod(start, TILE)
        span = skipped + (rows - 1) * stride + width
        made = self._edge[: -(-span // TILE) * TILE]
        self._tiles(leaf, row, tile, made)
        size = made.itemsize
        out[:] = np.lib.stride_tricks.as_strided(made[skipped:], (rows, width), (stride * size, size))

    def _tiles(self, leaf: int, row: int, tile: int, out: Noise) -> None:
        blocks = self._tile_bytes // BLOCK
        words = self._words[: len(out) // TILE * self._tile_bytes]
        self._source.words(leaf, row, tile * blocks, words)
        if self._convert(self._typed_words, out):  # one pair in 2^63 (float32) or 2^53 (float64)
            self._extend_tail(leaf, row, tile, out)

    def _extend_tail(self, leaf: int, row: int, tile: int, out: Noise) -> None:
        """Regenerate the pairs in the smallest cell of u from extra words."""
        tiles = len(out) // TILE
        words = self._words[: tiles * self._tile_bytes].view(self._typed_words.dtype)
        parts = words.reshape(tiles, -1, PAIRS)  # high, low, angle; or word, angle
        extra = np.empty(EXTRA_BYTES, dtype=np.uint8)
        for i, p in np.argwhere(_in_smallest_cell(parts)).tolist():
            self._source.words(leaf, row, extra_block((tile + i) * PAIRS + p), extra)
            u = tail_uniform(extra.tobytes(), out.dtype.name)  # mantissa and exponent
            first = i * TILE + p
            out[first], out[first + PAIRS] = self._tail_pair(*u, *parts[i, -2:, p])


def _in_smallest_cell(parts: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which pairs have only zero bits in u; their sign and swap bits are ignored."""
    if parts.dtype == np.int32:
        return (parts[:, 0] == 0) & (parts[:, 1] & -2 == 0)
    return parts[:, 0] >> np.uint64(64 - BITS["float64"]) == 0
