"""A digest of what a step gave, to tell a replay with the same output from one with another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import refuse

DIGEST_BYTES = 32

Arrays = Mapping[str, NDArray[Any]] | Iterable[NDArray[Any]]


def digest(arrays: Arrays) -> bytes:
    """SHA-256 over names, shapes, dtypes and bytes of arrays, for `Run.commit`.

    Args:
        arrays: a list of numeric arrays, or a mapping from names to them, such as the model after the step.

    >>> import numpy as np
    >>> digest([np.zeros(2)]) == digest([np.zeros(2)]), digest([np.zeros(2)]) == digest([np.zeros((2, 1))])
    (True, False)
    """
    if isinstance(arrays, (str, bytes, np.ndarray)) or not isinstance(arrays, Iterable):
        raise refuse("digest", "arrays", "a list or mapping of arrays", type(arrays).__name__, "put it in a list")
    named = sorted(arrays.items()) if isinstance(arrays, Mapping) else [("", array) for array in arrays]
    if not named:
        raise refuse("digest", "arrays", "at least one array", "none", "an exhausted generator gives none")
    code = hashlib.sha256()
    for name, array in named:
        value = np.asarray(array)
        if value.dtype.kind not in "biufc":
            raise refuse(
                "digest", "arrays", "numeric arrays", f"dtype {value.dtype}", "flatten nested structures first"
            )
        code.update(repr((name, value.dtype.str, value.shape)).encode())
        code.update(np.ascontiguousarray(value).tobytes())
    return code.digest()
