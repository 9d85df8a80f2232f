"""Digests of step outputs, which show whether a replayed step gave the same output.

There are two kinds: SHA-256, which anyone can compute, and a keyed digest, which is many times faster and needs the
secret of the run.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from antiphase._check import invalid
from antiphase._secret import Secret
from antiphase._traceback import without_locals

DIGEST_BYTES = 32
DigestKind = Literal["sha256", "keyed"]
SHA256: DigestKind = "sha256"
KEYED: DigestKind = "keyed"
CHUNK = 1 << 20
FEW = 4  # up to this many chunks are hashed without starting threads
SEGMENT = 1 << 30  # bytes per nonce; GCM allows 2^36, but shorter messages are less likely to collide
LONGEST_UPDATE = 1 << 26  # bytes per call of OpenSSL, which counts them in a C int
LABEL = "keyed output digest"
LONG_DOUBLES = "gG"  # characters of the dtypes longdouble and clongdouble
X87_MANTISSA, X87_BYTES = 63, 10  # size of a long double on x86; NumPy stores it in 12 or 16 bytes

Arrays = Mapping[str, Any] | Iterable[Any]  # NumPy arrays, or tensors of PyTorch on any device


def digest(arrays: Arrays) -> bytes:
    """Return the SHA-256 digest of the names, shapes, dtypes and contents of arrays, for `Run.commit`.

    Contents are hashed in chunks of 1 MiB, on all cores. `Run.digest` is faster.

    Args:
        arrays: a list of numeric arrays, or a mapping from names to them, such as the model after the step.

    >>> import numpy as np
    >>> digest([np.zeros(2)]) == digest([np.zeros(2)]), digest([np.zeros(2)]) == digest([np.zeros((2, 1))])
    (True, False)
    """
    code, values = hashlib.sha256(), []
    for name, value in _named(arrays):
        code.update(repr((name, value.dtype.str, value.shape)).encode())
        values.append(value)
    for chunk in _digests([chunk for value in values for chunk in _chunks(value)]):
        code.update(chunk)
    return code.digest()


@final
class KeyedDigest:
    """Computes keyed digests of a step's arrays.

    A digest is a pseudorandom function (PRF) of the step and of the names, shapes, dtypes and contents of the arrays.
    With keys k1 and k2 derived from the secret and the run id,

        digest = HMAC-SHA256(k2, step | description | tag_0 | tag_1 | ...),
        tag_i = AES-256-GMAC(k1, nonce = (step, i), segment i of the contents).

    The description lists the name, dtype and shape of each array and is preceded by its length. It determines where
    each array begins and ends in the concatenated contents, and how many segments there are. Therefore, two different
    lists of arrays have different descriptions or differ in a segment.

    **Guarantee**: without the secret, digests reveal only whether two outputs of the same step are equal. Two different
    outputs of a step have the same digest with a probability below 2^-100.

    A replayed step uses the nonces of the original step again. If the tags were public, this would be fatal: the XOR of
    two tags with the same nonce is a known polynomial in the hash key, and solving for the key is easy. Here, the tags
    are secret, because only HMAC reads them. With a fixed nonce, a tag is GHASH(segment) XOR a constant. GHASH is a
    universal hash: two different segments of at most L blocks of 16 bytes have the same tag with a probability of at
    most (L + 1) / 2^128. A universal hash followed by a PRF is a PRF. The reason is that two different lists of arrays
    almost surely give HMAC two different inputs, and then the digests are independent random bytes to anyone without
    k2. Secrecy therefore does not depend on the nonces. The nonces only make the tags of equal segments differ, whether
    these are segments of one step or of different steps.

    Reference: Carter and Wegman 1981 (universal hashing); Shoup 1996, "On fast and provably secure message
    authentication based on universal hashing"; McGrew and Viega 2004 (GHASH); NIST SP 800-38D (GMAC).
    """

    def __init__(self, secret: Secret, run_id: str) -> None:
        self._gmac_key = secret.derive(LABEL, "GMAC", run_id)
        self._hmac_key = secret.derive(LABEL, "HMAC", run_id)

    @without_locals
    def __call__(self, step: int, arrays: Arrays, segment: int = SEGMENT) -> bytes:
        """Return the digest, 32 bytes. `segment` is the number of bytes per nonce."""
        named = _named(arrays)
        description = repr([(name, value.dtype.str, value.shape) for name, value in named]).encode()
        code = hmac.new(self._hmac_key, digestmod="sha256")
        code.update(step.to_bytes(8, "big") + len(description).to_bytes(8, "big") + description)
        tags = _Tags(self._gmac_key, step, segment)
        for _, value in named:
            tags.update(_bytes_of(value))
        for tag in tags.finish():
            code.update(tag)
        return code.digest()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("keys cannot be pickled or copied")


@final
class _Tags:
    """Computes the GMAC tags of a stream of bytes, which is split into segments of a fixed length."""

    def __init__(self, key: bytes, step: int, segment: int) -> None:
        self._key, self._step, self._segment = key, step, segment
        self._tags: list[bytes] = []
        self._context: Any = None
        self._room = 0  # bytes that still fit into the current segment

    def update(self, data: memoryview) -> None:
        """Append bytes to the stream."""
        start = 0
        while start < len(data):
            if self._room == 0:
                self._end_segment()
                self._context, self._room = self._new_context(), self._segment
            stop = start + min(self._room, len(data) - start)
            for i in range(start, stop, LONGEST_UPDATE):
                self._context.authenticate_additional_data(data[i : min(i + LONGEST_UPDATE, stop)])
            self._room -= stop - start
            start = stop

    def finish(self) -> list[bytes]:
        """Return the tags of all segments; none if there were no bytes."""
        self._end_segment()
        return self._tags

    def _end_segment(self) -> None:
        if self._context is not None:
            self._context.finalize()
            self._tags.append(self._context.tag)
            self._context = None

    def _new_context(self) -> Any:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        nonce = self._step.to_bytes(8, "big") + len(self._tags).to_bytes(4, "big")
        return Cipher(algorithms.AES(self._key), modes.GCM(nonce)).encryptor()


def _named(arrays: Arrays) -> list[tuple[str, NDArray[Any]]]:
    """Return the arrays with their names, in the order in which they are hashed."""
    if isinstance(arrays, (str, bytes, np.ndarray)) or not isinstance(arrays, Iterable):
        raise invalid("digest", "arrays", "a list or mapping of arrays", type(arrays).__name__, "put it in a list")
    try:
        named = sorted(arrays.items()) if isinstance(arrays, Mapping) else [("", array) for array in arrays]
    except TypeError as error:  # names of different types cannot be sorted
        raise invalid("digest", "arrays", "named by strings", list(arrays), "name each array by a string") from error
    if not named:
        raise invalid("digest", "arrays", "at least one array", "none", "an exhausted generator yields no arrays")
    found = [(name, _array(array)) for name, array in named]
    for _, value in found:
        if value.dtype.kind not in "biufc":
            raise invalid(
                "digest", "arrays", "numeric arrays", f"dtype {value.dtype}", "flatten nested structures first"
            )
    return found


def _array(given: Any) -> NDArray[Any]:
    if hasattr(given, "detach") and hasattr(given, "cpu"):  # a PyTorch tensor, on any device
        given = given.detach().cpu()
    try:
        return np.asarray(given)
    except TypeError as error:  # a tensor of bfloat16, for example
        hint = "convert it to a dtype that NumPy has, such as float32"
        raise invalid("digest", "arrays", "numeric arrays", type(given).__name__, hint) from error
    except ValueError as error:  # nested lists of different lengths
        got = f"a {type(given).__name__} of parts with different lengths"  # not its contents, which may be noise
        raise invalid("digest", "arrays", "numeric arrays", got, "flatten nested structures first") from error


def _chunks(array: NDArray[Any]) -> list[memoryview]:
    """Return the bytes of an array in chunks of 1 MiB."""
    whole = _bytes_of(array)
    return [whole[i : i + CHUNK] for i in range(0, len(whole), CHUNK)]


def _bytes_of(array: NDArray[Any]) -> memoryview:
    """Return the contents in C order. Contiguous arrays are not copied, except arrays of long doubles."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.char in LONG_DOUBLES and np.finfo(np.longdouble).nmant == X87_MANTISSA:
        # The bytes of a number after the first X87_BYTES are unused and undefined: equal numbers can differ there.
        size = np.dtype(np.longdouble).itemsize
        stored = flat.astype(flat.dtype.newbyteorder("="), copy=False).view(np.uint8)
        return np.ascontiguousarray(stored.reshape(-1, size)[:, :X87_BYTES]).reshape(-1).data
    return flat.view(np.uint8).data


def _digests(chunks: list[memoryview]) -> Iterable[bytes]:
    if len(chunks) <= FEW:
        return [_sha256(chunk) for chunk in chunks]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(_sha256, chunks))


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def keyed_output(secret: Secret, run_id: str, digest: bytes) -> bytes:
    """Return a step's digest as stored in the ledger. The key prevents readers from testing guesses of the output."""
    return hmac.digest(secret.derive("output digest", run_id), bytes(digest), "sha256")
