"""Digests of step outputs, which tell whether a replayed step gave the same output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import invalid

DIGEST_BYTES = 32
CHUNK = 1 << 20
FEW = 4  # chunks that are not worth starting threads for

Arrays = Mapping[str, NDArray[Any]] | Iterable[NDArray[Any]]


def digest(arrays: Arrays) -> bytes:
    """SHA-256 of names, shapes, dtypes and contents of arrays, for `Run.commit`.

    Contents are hashed in chunks of 1 MiB, on all cores.

    Args:
        arrays: a list of numeric arrays, or a mapping from names to them, such as the model after the step.

    >>> import numpy as np
    >>> digest([np.zeros(2)]) == digest([np.zeros(2)]), digest([np.zeros(2)]) == digest([np.zeros((2, 1))])
    (True, False)
    """
    if isinstance(arrays, (str, bytes, np.ndarray)) or not isinstance(arrays, Iterable):
        raise invalid("digest", "arrays", "a list or mapping of arrays", type(arrays).__name__, "put it in a list")
    try:
        named = sorted(arrays.items()) if isinstance(arrays, Mapping) else [("", array) for array in arrays]
    except TypeError as error:  # names of different types cannot be sorted
        raise invalid("digest", "arrays", "named by strings", list(arrays), "name each array by a string") from error
    if not named:
        raise invalid("digest", "arrays", "at least one array", "none", "an exhausted generator gives none")
    code, values = hashlib.sha256(), []
    for name, array in named:
        value = _array(array)
        if value.dtype.kind not in "biufc":
            raise invalid(
                "digest", "arrays", "numeric arrays", f"dtype {value.dtype}", "flatten nested structures first"
            )
        code.update(repr((name, value.dtype.str, value.shape)).encode())
        values.append(value)
    for chunk in _digests([chunk for value in values for chunk in _chunks(value)]):
        code.update(chunk)
    return code.digest()


def _array(given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except ValueError as error:  # nested lists of different lengths
        raise invalid("digest", "arrays", "numeric arrays", given, "flatten nested structures first") from error


def _chunks(array: NDArray[Any]) -> list[memoryview]:
    """The bytes of an array in chunks, whose offsets depend only on its shape."""
    whole = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return [whole[i : i + CHUNK] for i in range(0, len(whole), CHUNK)]


def _digests(chunks: list[memoryview]) -> Iterable[bytes]:
    if len(chunks) <= FEW:
        return [_sha256(chunk) for chunk in chunks]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(_sha256, chunks))


def _sha256(data: memoryview) -> bytes:
    return hashlib.sha256(data).digest()
