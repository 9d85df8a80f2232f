"""Products of long vectors without BLAS.

BLAS divides a product of some ten thousand entries among threads; where other work holds the cores they wait for
each other, up to a hundred times longer than the product takes.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array

BLOCK = 1 << 15


def inner(a: Array, b: Array) -> float:
    """a . b.

    >>> inner(np.array([1.0, 2.0]), np.array([3.0, 4.0]))
    11.0
    """
    return float(np.einsum("i,i", a, b))


def length(a: Array) -> float:
    """|a|."""
    return math.sqrt(inner(a, a))


def add_scaled(out: Array, factor: float, a: Array) -> None:
    """out += factor * a, block by block so that no array of the same size is made."""
    for start in range(0, len(out), BLOCK):
        out[start : start + BLOCK] += factor * a[start : start + BLOCK]
