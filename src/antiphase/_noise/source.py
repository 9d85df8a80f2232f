"""Random words by address: each address (row, leaf, block) determines 16 random bytes.

A row is a row of the white noise z, and a leaf is one array of the model. Each leaf has its own AES-256 key,
HKDF(secret, source, run id, plan, dtype, leaf name, leaf shape). AES in counter mode turns (row, block) into random
words:

    counter, 128 bits, big-endian:   row (64 bits) | block (64 bits)

Normals are drawn in tiles of 64. A tile takes 24 blocks in float32 and 32 in float64. In float32, tile i of a row uses
blocks 24 i, ..., 24 i + 23; all such blocks are below 2^59. Blocks from 2^63 on provide extra words for the far tail
(see `tail.py`). No two rows, tiles or leaves ever use the same block of the same key. With q blocks under one key, an
attacker's advantage in distinguishing the words from true random bits is at most the advantage in breaking AES plus
q^2 / 2^129. For a million rows of a leaf with a hundred million entries, q^2 / 2^129 is 2^-38.

float32 and float64 streams have different keys and therefore unrelated z. If a float32 run and a float64 run shared the
same z, anyone who saw the outputs of both could learn the difference of their gradients.

Reference: NIST SP 800-38A (counter mode), FIPS 197 (AES).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from antiphase._check import one_of
from antiphase._errors import AntiphaseError
from antiphase._noise.leaves import Leaf
from antiphase._secret import Secret

BLOCK = 16  # bytes per AES block
LARGEST = 1 << 19  # maximum number of bytes requested at once
SourceName = Literal["aes", "simulation"]
Bytes = NDArray[np.uint8]


def leaf_keys(secret: Secret, labels: tuple[str, ...], leaves: dict[str, Leaf]) -> list[bytes]:
    """Return the key of each leaf. The labels identify the source, the run, the plan and the dtype."""
    return [secret.derive("noise", *labels, name, *leaf.global_shape) for name, leaf in leaves.items()]


class Source(ABC):
    """Base class: generates random words by address. Objects hold buffers and ciphers, so each thread needs its own."""

    @abstractmethod
    def words(self, leaf: int, row: int, block: int, out: Bytes) -> None:
        """Fill `out` with random bytes: the blocks of a leaf and row from block number `block` on.

        `out` has at most LARGEST bytes.
        """


@final
class Aes(Source):
    """Generates random words with AES-256 in counter mode.

    **Guarantee**: without the key, no known attack can distinguish the words from true random bits.
    """

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys
        self._contexts: dict[int, Any] = {}
        self._zeros = np.zeros(LARGEST, dtype=np.uint8)

    def words(self, leaf: int, row: int, block: int, out: Bytes) -> None:
        """Fill `out` with the key stream from counter (row, block) on."""
        context = self._contexts.get(leaf)
        if context is None:
            context = self._contexts[leaf] = counter_mode(self._keys[leaf])
        context.reset_nonce((row << 64 | block).to_bytes(16, "big"))
        context.update_into(self._zeros[: len(out)], out)


def counter_mode(key: bytes) -> Any:
    """Return an AES-256 encryptor in counter mode, at counter 0."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


@final
class Simulation(Source):
    """Generates random words with NumPy's Philox, which is not cryptographic. For simulations only."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = [int.from_bytes(key[:16], "little") for key in keys]

    def words(self, leaf: int, row: int, block: int, out: Bytes) -> None:
        """Fill `out`. One step of the Philox counter gives two blocks, so `block` must be even, which it always is."""
        philox = np.random.Philox(key=self._keys[leaf], counter=[block // 2, row, 0, 0])
        out.view(np.uint64)[:] = philox.random_raw(len(out) // 8)


def check_source(name: str) -> SourceName:
    """Return the name of a source, "aes" or "simulation". Raises `InvalidArgument` for anything else."""
    names: tuple[SourceName, ...] = get_args(SourceName)
    return one_of("NoiseStream", "source", name, names, "use 'aes' wherever privacy matters")


def source_maker(name: SourceName, keys: list[bytes]) -> Callable[[], Source]:
    """Return a function that creates a new source, to be called once per thread."""
    if sys.byteorder != "little":
        raise AntiphaseError("Noise streams need a little-endian machine.", hint="use an x86-64 or ARM64 machine")
    return lambda: Aes(keys) if name == "aes" else Simulation(keys)
