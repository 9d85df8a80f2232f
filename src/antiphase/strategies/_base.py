"""The base class of all strategies: C and N as dense arrays, as full products and as streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument, NotEnoughMemory
from antiphase.strategies._gram import DenseGram, Gram
from antiphase.strategies._recursion import Recursion
from antiphase.strategies._stream import Stream, noising_stream

LARGEST_DENSE = 1 << 29  # entries: 4 GiB of float64
Rescale = Callable[[Array], Array]


class Strategy(ABC):
    """A strategy matrix C (encoder, m x n) with a left inverse N (noising matrix): N C = I.

    Rows of C are ordered by the step that completes them; `rows_at` returns how many rows a step completes.
    """

    steps: int

    @property
    @abstractmethod
    def memory_copies(self) -> int:
        """Number of model-sized buffers that a noising stream holds between steps."""

    @abstractmethod
    def encoding_stream(self) -> Stream:
        """Return a stream that applies C."""

    @abstractmethod
    def recursion(self) -> Recursion:
        """Return the record from `_recursion.py` that describes how to compute N z; all noise code uses it."""

    def noising_stream(self) -> Stream:
        """Return a stream that applies N."""
        return noising_stream(self.recursion())

    @property
    def rows(self) -> int:
        """Number of rows of C, m."""
        return self.steps

    @property
    def is_causal(self) -> bool:
        """Whether the noise of each step needs only the rows of z for rows of C that are complete by that step."""
        return self.recursion().is_causal

    @property
    def diagonals(self) -> int | None:
        """Number of diagonals of a lower-triangular C up to the last non-zero one; None for any other C.

        With at most b diagonals, steps j, j + b, j + 2b, ... have no row of C in common.
        """
        return None

    @property
    def is_extensible(self) -> bool:
        """Whether the N of a longer run starts with this N, so that a run can be extended after it has begun."""
        return False

    @property
    def first_is_monotone(self) -> bool:
        """Whether the sensitivity bounds of `first(steps)` never decrease as `steps` grows.

        This holds if C has no negative entry, or if `first` returns all of C.
        """
        return False

    def scale_exponents(self) -> tuple[int, int]:
        """Return the smallest and the largest binary exponent of the entries of C that noise is divided by.

        For a lower-triangular C these are the diagonal entries; for any other C, the largest entry. Strategies that
        cannot be rescaled return (0, 0).
        """
        return 0, 0

    @property
    def has_unit_columns(self) -> bool:
        """Whether the columns of C are normalised, so that scaling the coefficients does not change C."""
        return False

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Strategy | None:
        """Return this strategy with `scale` applied to its stored entries of C, or `inverse` to those of C^-1.

        Returns None if the strategy cannot be rescaled.
        """
        return None

    def band_columns(self) -> Array | None:
        """Return the bands of a lower-triangular C as in `Banded`, [j, r] = C[j + r, j]; None if not available."""
        return None

    def toeplitz_column(self) -> Array | None:
        """Return the first column of a lower-triangular Toeplitz C, or None for any other C.

        Trailing zeros may be left out. Raises `NotProved` if the column must be computed and is too long for memory.
        """
        return None

    @property
    def stores_column(self) -> bool:
        """Whether `toeplitz_column` returns a stored array, of any length, without computing it."""
        return False

    @property
    def tree_height(self) -> int | None:
        """Level of the root if C has one row per node of a binary tree over the steps; otherwise None."""
        return None

    @property
    def block(self) -> Strategy:
        """The strategy of one block if C repeats a block along its diagonal; otherwise the strategy itself."""
        return self

    @property
    def blocks(self) -> int:
        """Number of times that C repeats `block`."""
        return 1

    def gram(self, *, absolute: bool = False) -> Gram:
        """Return the Gram matrix X = C^T C; with `absolute`, the Gram matrix of the entrywise |C|.

        This default uses the dense C. Override it if C has structure.
        """
        matrix = self.encoder()
        return DenseGram(np.abs(matrix) if absolute else matrix)

    def first(self, steps: int) -> Strategy:
        """Return a strategy for the first `steps` steps, which must contain every row of C that they complete.

        It may contain more of C, up to all of it.
        """
        return self

    def rows_at(self, step: int) -> int:
        """Return the number of rows of z that the noising stream takes in this step."""
        return 1

    def multiply(self, x: ArrayLike) -> Array:
        """Return C x along the first axis."""
        x = check_rows(self, "multiply", x, self.steps)
        stream = self.encoding_stream()
        return np.concatenate([stream.step(x[t]) for t in range(self.steps)])

    def solve(self, z: ArrayLike) -> Array:
        """Return N z along the first axis; for square C this is C^-1 z."""
        z = check_rows(self, "solve", z, self.rows)
        stream, start, out = self.noising_stream(), 0, np.empty((self.steps, *z.shape[1:]))
        for t in range(self.steps):
            stop = start + self.rows_at(t)
            out[t] = stream.step(z[start:stop])
            start = stop
        return out

    def encoder(self) -> Array:
        """Return C as a dense array, for small cases."""
        self._check_dense()
        return self.multiply(np.eye(self.steps))

    def noising(self) -> Array:
        """Return N as a dense array, for small cases."""
        self._check_dense()
        return self.solve(np.eye(self.rows))

    def _check_dense(self) -> None:
        if self.steps * self.rows > LARGEST_DENSE:
            raise NotEnoughMemory(
                f"A dense {self.rows} x {self.steps} matrix of {type(self).__name__} would not fit in memory.",
                hint="use multiply, solve or a stream, which need only a few buffers",
            )


def check_rows(strategy: Strategy, method: str, value: ArrayLike, rows: int) -> Array:
    """Return `value` as float64, and check that it has `rows` rows along its first axis."""
    value = np.asarray(value, dtype=np.float64)
    if value.ndim == 0 or len(value) != rows:
        raise InvalidArgument(
            f"{type(strategy).__name__}.{method} needs {rows} rows along the first axis. Got shape {value.shape}.",
            hint=f"the strategy has {strategy.steps} steps and {strategy.rows} rows",
        )
    return value


def exponents(entries: Array) -> tuple[int, int]:
    """Return the smallest and the largest binary exponent of the non-zero entries."""
    found = np.frexp(entries[entries != 0])[1]
    return int(found.min()), int(found.max())


def check_steps(owner: str, steps: int) -> int:
    """Return `steps` as an int, and check that it is positive."""
    return _check.positive_integer(owner, "steps", steps, "a run has at least one step")
