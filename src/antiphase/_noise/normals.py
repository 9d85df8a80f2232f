"""White noise z by address: each address (row, leaf, flat index in the whole leaf) determines one standard normal.

A leaf is an array of the model. Normals come in pairs: the Box-Muller method computes each pair from a uniform number u
and an angle (see `antiphase._kernels.gaussian`). A tile holds 64 normals, that is, 32 pairs.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from antiphase._noise.source import BLOCK, LARGEST, Source
from antiphase._noise.tail import BITS, EXTRA_BYTES, extra_block, tail_uniform
from antiphase._noise.tiles import TILE, TiledDraws

PAIRS = TILE // 2
TILE_BYTES = {"float32": 24 * BLOCK, "float64": 32 * BLOCK}  # random bytes that a tile takes
TILES_AT_ONCE = LARGEST // max(TILE_BYTES.values())  # largest number of tiles generated at once
Noise = NDArray[Any]  # float32 or float64


@final
class Normals(TiledDraws):
    """Generates standard normals by address from a source of random words. Each thread needs its own object."""

    def __init__(self, source: Source, dtype: np.dtype[Any]) -> None:
        from antiphase._kernels import normals_32, normals_64, tail_pair_32, tail_pair_64

        super().__init__(dtype, TILES_AT_ONCE)
        self._source = source
        self._words = np.empty(TILES_AT_ONCE * TILE_BYTES[dtype.name], dtype=np.uint8)
        self._tile_bytes = TILE_BYTES[dtype.name]
        single = dtype == np.float32
        self._convert: Any = normals_32 if single else normals_64
        self._tail_pair: Any = tail_pair_32 if single else tail_pair_64
        self._typed_words = self._words.view(np.int32 if single else np.uint64)

    def _tiles(self, leaf: int, row: int, tile: int, out: Noise) -> None:
        blocks = self._tile_bytes // BLOCK
        words = self._words[: len(out) // TILE * self._tile_bytes]
        self._source.words(leaf, row, tile * blocks, words)
        if self._convert(self._typed_words, out):  # true for one pair in 2^63 (float32) or 2^53 (float64)
            self._extend_tail(leaf, row, tile, out)

    def _extend_tail(self, leaf: int, row: int, tile: int, out: Noise) -> None:
        """Find the pairs whose uniform u has only zero bits, and draw them again with extra bits; see `tail.py`."""
        tiles = len(out) // TILE
        words = self._words[: tiles * self._tile_bytes].view(self._typed_words.dtype)
        parts = words.reshape(tiles, -1, PAIRS)  # float32: high, low, angle; float64: word, angle
        extra = np.empty(EXTRA_BYTES, dtype=np.uint8)
        for i, p in np.argwhere(_in_smallest_cell(parts)).tolist():
            self._source.words(leaf, row, extra_block((tile + i) * PAIRS + p), extra)
            u = tail_uniform(extra.tobytes(), out.dtype.name)  # a pair (v, h) with u = v / 2^h
            first = i * TILE + p
            out[first], out[first + PAIRS] = self._tail_pair(*u, *parts[i, -2:, p])


def _in_smallest_cell(parts: NDArray[Any]) -> NDArray[np.bool_]:
    """Return, for each pair, whether all bits of u are zero. The other bits of the words of u are ignored."""
    if parts.dtype == np.int32:
        return (parts[:, 0] == 0) & (parts[:, 1] & -2 == 0)
    return parts[:, 0] >> np.uint64(64 - BITS["float64"]) == 0
