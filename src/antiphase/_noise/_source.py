"""White noise z by address: (row, leaf, flat index in the whole leaf) -> a standard normal, always the same bits.

Each leaf has its own AES-256 key, HKDF(secret, run id, plan, dtype, leaf name, leaf shape), and counter mode turns
(row, block) into random words:

    counter, 128 bits, big-endian:   row (64 bits) | block (64 bits)

A tile of 64 normals takes 24 blocks in float32 and 32 in float64: tile i of a row is blocks 24 i, ..., 24 i + 23.
A row has fewer than 2^64 blocks, so no two rows, tiles or leaves ever use the same block of the same key. With q
blocks under one key the words differ from true random bits by an advantage of at most q^2 / 2^129 beyond that of
breaking AES: 2^-43 for a million rows of a leaf with a hundred million entries.

float32 and float64 streams have different keys, hence unrelated z: were they one noise at two precisions, a run
in each would give away the difference of their gradients.

Reference: NIST SP 800-38A (counter mode), FIPS 197 (AES).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from antiphase._check import refuse
from antiphase._errors import AntiphaseError
from antiphase._noise._leaves import Leaf
from antiphase._secret import Secret

TILE = 64
BLOCK = 16  # bytes of an AES block
TILE_BYTES = {"float32": 24 * BLOCK, "float64": 32 * BLOCK}
LARGEST_CALL = 512  # tiles made at once: words and normals stay in the cache
SourceName = Literal["aes", "simulation"]
Bytes = NDArray[np.uint8]
Noise = NDArray[Any]  # float32 or float64


def leaf_keys(secret: Secret, labels: tuple[str, ...], leaves: dict[str, Leaf]) -> list[bytes]:
    """The key of each leaf; `labels` name the run, the plan, the source and the dtype."""
    return [secret.derive("noise", *labels, name, *leaf.global_shape) for name, leaf in leaves.items()]


class Source(ABC):
    """Random words by address. One for each thread: it holds buffers and cipher contexts."""

    @abstractmethod
    def words(self, leaf: int, row: int, block: int, out: Bytes) -> None:
        """Fill `out` with the blocks block, block + 1, ... of a row of a leaf."""


@final
class Aes(Source):
    """AES-256 in counter mode.

    **Guarantee**: without the key, the words cannot be told from true random bits by any known attack.
    """

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys
        self._contexts: dict[int, Any] = {}
        self._zeros = np.zeros(LARGEST_CALL * max(TILE_BYTES.values()), dtype=np.uint8)

    def words(self, leaf: int, row: int, block: int, out: Bytes) -> None:
        """The key stream from counter (row, block) on."""
        context = self._contexts.get(leaf)
        if context is None:
            context = self._contexts[leaf] = counter_mode(self._keys[leaf])
        context.reset_nonce((row << 64 | block).to_bytes(16, "big"))
        context.update_into(self._zeros[: len(out)], out)


def counter_mode(key: bytes) -> Any:
    """AES-256 in counter mode, at counter 0."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


@final
class Simulation(Source):
    """NumPy's Philox: statistically sound, not secret. For simulations, and marked in every report."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = [int.from_bytes(key[:16], "little") for key in keys]

    def words(self, leaf: int, row: int, block: int, out: Bytes) -> None:
        """Philox counts in units of two blocks; tiles have an even number of them."""
        philox = np.random.Philox(key=self._keys[leaf], counter=[block // 2, row, 0, 0])
        out.view(np.uint64)[:] = philox.random_raw(len(out) // 8)


def source_maker(name: SourceName, keys: list[bytes]) -> Callable[[], Source]:
    """What makes a source for a thread."""
    if name not in get_args(SourceName):
        raise refuse("NoiseStream", "source", "'aes' or 'simulation'", name, "use 'aes' wherever privacy matters")
    if sys.byteorder != "little":
        raise AntiphaseError("Noise streams need a little-endian machine.", hint="every common one is")
    return lambda: Aes(keys) if name == "aes" else Simulation(keys)


@final
class Normals:
    """Standard normals by address, made from a source; one for each thread."""

    def __init__(self, source: Source, dtype: np.dtype[Any]) -> None:
        from antiphase._kernels import gaussian

        self._source = source
        self._words = np.empty(LARGEST_CALL * TILE_BYTES[dtype.name], dtype=np.uint8)
        self._tile_bytes = TILE_BYTES[dtype.name]
        single = dtype == np.float32
        self._convert: Any = gaussian.normals_32 if single else gaussian.normals_64
        self._typed_words = self._words.view(np.int32 if single else np.uint64)
        self._edge = np.empty(LARGEST_CALL * TILE, dtype=dtype)

    def fill(self, leaf: int, row: int, start: int, out: Noise) -> None:
        """z of entries start, start + 1, ... of the flat whole leaf."""
        done = 0
        while done < len(out):
            tile, skipped = divmod(start + done, TILE)
            left = len(out) - done
            whole = min(left // TILE, LARGEST_CALL)
            if skipped == 0 and whole > 0:
                self._tiles(leaf, row, tile, out[done : done + whole * TILE])
                done += whole * TILE
            else:
                count = min(left, LARGEST_CALL * TILE - skipped)
                made = self._edge[: -(-(skipped + count) // TILE) * TILE]
                self._tiles(leaf, row, tile, made)
                out[done : done + count] = made[skipped : skipped + count]
                done += count

    def fill_rows(self, leaf: int, row: int, start: int, stride: int, out: Noise) -> None:
        """z of len(out) stretches of the flat whole leaf, `stride` apart: out is two-dimensional."""
        rows, width = out.shape
        together = (LARGEST_CALL * TILE - TILE - width) // stride + 1
        if together < 2 or stride > 4 * width + TILE:  # far apart: what lies between would cost more than the calls
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
        self._convert(self._typed_words, out)
