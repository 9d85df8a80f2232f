"""Vector and matrix operations that avoid waiting for BLAS threads.

BLAS and LAPACK split even small operations across threads. If other processes keep the processor busy, these threads
wait for each other, and the wait can be a hundred times longer than the operation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array


def inner(a: Array, b: Array) -> float:
    """Return the inner product of two vectors.

    >>> inner(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    return float(np.einsum("i,i", a, b))


def norm(a: Array) -> float:
    """Return the Euclidean norm of a vector."""
    return math.sqrt(inner(a, a))


def add_scaled(out: Array, factor: float, a: Array) -> None:
    """Compute out += factor * a in place, in blocks. This avoids a temporary array of the length of `a`."""
    block = 1 << 15
    for start in range(0, len(out), block):
        out[start : start + block] += factor * a[start : start + block]


def lower_inverse(L: NDArray[np.floating[Any]]) -> Array:
    """Return the inverse of a lower-triangular matrix.

    For at most 256 rows, the function uses NumPy's general inverse, because LAPACK's triangular solver always uses
    threads and is slower for such small matrices.

    >>> lower_inverse(np.array([[2.0, 0.0], [1.0, 1.0]])).tolist()
    [[0.5, 0.0], [-0.5, 1.0]]
    """
    if len(L) <= 256:
        return np.tril(np.linalg.inv(L))
    from scipy.linalg import solve_triangular

    return np.ascontiguousarray(solve_triangular(L, np.eye(len(L)), lower=True, check_finite=False))
