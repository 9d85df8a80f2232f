"""Random bits for samplers: AES-256 in counter mode, with a key derived from a `Secret`.

A stream maps (address, number) to 128 random bits. The address is a step, an epoch or 0. The number is often an example
id; AES encrypts the two as one block. Any part of a stream can be read without generating the parts before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, final

import numpy as np
from numpy.typing import NDArray

from antiphase._errors import AntiphaseError
from antiphase._secret import Secret

FORMAT = 1  # every key is derived from it; change it whenever the output of a sampler changes
BLOCK_BYTES = 16
CHUNK = 2**15  # draws computed at once
Labels = tuple[int | str, ...]
Draws = NDArray[np.uint64]
Ids = NDArray[np.int64]


@final
class DrawStream:
    """A stream of 128-bit random draws, indexed by (address, number).

    **Guarantee**: the draws of all streams and addresses are independent and uniform, assuming that AES-256 and
    HKDF-SHA256 are indistinguishable from random functions. A stream cannot be pickled, because it holds a key.

    Args:
        secret: secret from which the key is derived.
        labels: the name of the participation (or class), the parameters that determine the draws, and a purpose.
            For a sampler with `extendable=True`, the labels do not depend on the number of steps, so a longer run
            begins with the same batches.
    """

    __slots__ = ("_key",)

    def __init__(self, secret: Secret, labels: Labels) -> None:
        self._key = secret.derive("sampler", FORMAT, *labels)

    def draws(self, address: int, count: int, first: int = 0) -> Draws:
        """Return the draws with numbers `first` to `first + count - 1` at `address`, shape (count, 2).

        Each row is one draw, as two 64-bit words (high, low).
        """
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        counter = address.to_bytes(8, "big") + first.to_bytes(8, "big")
        data = Cipher(AES(self._key), CTR(counter)).encryptor().update(bytes(count * BLOCK_BYTES))
        return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False).reshape(count, 2)

    def draws_at(self, address: int, numbers: Ids) -> Draws:
        """Return the draws with the given numbers at `address`, in the given order. Rows are as in `draws`."""
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES
        from cryptography.hazmat.primitives.ciphers.modes import ECB

        counters = np.empty((numbers.size, 2), ">u8")
        counters[:, 0], counters[:, 1] = address, numbers
        data = Cipher(AES(self._key), ECB()).encryptor().update(counters.tobytes())
        return np.frombuffer(data, dtype="<u8").astype(np.uint64, copy=False).reshape(numbers.size, 2)

    def decide(self, kernel: Callable[[Draws, Any], Ids], argument: Any, address: int, count: int) -> Ids:
        """Return `kernel(draws, argument)` for draws 0, ..., count - 1 at `address`, shape (count,).

        The kernel is called on chunks that fit in the CPU cache.
        """
        out = np.empty(count, np.int64)
        for start in range(0, count, CHUNK):
            part = out[start : start + CHUNK]
            part[:] = kernel(self.draws(address, part.size, start), argument)
        return out

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise AntiphaseError(
            "A sampler cannot be pickled or copied: it holds keys.",
            hint="recreate it from the participation and the secret; the same arguments give the same batches",
        )
