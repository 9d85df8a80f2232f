"""The base class of all strategies."""

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

LARGEST_DENSE = 1 << 29  # maximum number of entries of a dense matrix, which then takes 4 GiB in float64
Rescale = Callable[[Array], Array]


class Strategy(ABC):
    """A strategy matrix C (encoder, m x n) with a left inverse N (noising matrix, n x m), so that N C = I.

    Here n is the number of steps. The noise of step t is row t of N z, where z has m rows of independent Gaussian
    draws. Step t completes a row of C if the last non-zero entry of the row is in column t. Rows of C are ordered by
    the step that completes them.
    """

    steps: int

    @abstractmethod
    def encoding_stream(self) -> Stream:
        """Return a stream that computes C x step by step."""

    @abstractmethod
    def recursion(self) -> Recursion:
        """Return the record that describes how to compute the noise N z (see `_recursion.py`)."""

    def noising_stream(self) -> Stream:
        """Return a stream that computes N z step by step."""
        return noising_stream(self.recursion())

    @property
    def memory_copies(self) -> int:
        """Number of model-sized buffers that the noise needs between steps."""
        return self.recursion().memory_copies

    @property
    def rows(self) -> int:
        """Number of rows of C, m."""
        return self.steps

    @property
    def is_causal(self) -> bool:
        """True if no row of z is used before the step that completes the row of C with the same index."""
        return self.recursion().is_causal

    @property
    def diagonals(self) -> int | None:
        """Number of diagonals of a lower-triangular C, up to the last non-zero one; None for any other C.

        If C has at most b diagonals, columns j, j + b, j + 2b, ... have no non-zero row in common.
        """
        return None

    @property
    def is_extensible(self) -> bool:
        """True if adding steps leaves the existing rows of N unchanged. A run can then be extended later."""
        return False

    @property
    def first_is_monotone(self) -> bool:
        """True if the sensitivity bounds of `first(steps)` never decrease as `steps` grows.

        This holds if C has no negative entry, or if `first` returns all of C.
        """
        return False

    def scale_exponents(self) -> tuple[int, int]:
        """Return the smallest and the largest binary exponent of the entries of C that set the scale of the noise.

        For a lower-triangular C, the diagonal entries set the scale, because noise is divided by them. For any other C,
        the largest entry sets it. Strategies that cannot be rescaled return (0, 0).
        """
        return 0, 0

    @property
    def has_unit_columns(self) -> bool:
        """True if the columns of C are scaled to norm 1. Rescaling the stored coefficients then does not change C."""
        return False

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Strategy | None:
        """Return this strategy with its stored entries rescaled, or None if it cannot be rescaled.

        Args:
            scale: function to apply to the stored entries, if they are entries of C.
            inverse: function to apply to the stored entries, if they are entries of C^-1.
        """
        return None

    def band_columns(self) -> Array | None:
        """Return columns[j, r] = C[j + r, j] for a lower-triangular C, as in `Banded`; None if not provided."""
        return None

    def toeplitz_column(self) -> Array | None:
        """Return the first column of a lower-triangular Toeplitz C, or None for any other C.

        Trailing zeros may be left out. Raises `NotProved` if the column must be computed and is too long for memory.
        """
        return None

    @property
    def stores_column(self) -> bool:
        """True if the first column of C is stored, so that it need not be computed and may have any length."""
        return False

    @property
    def tree_height(self) -> int | None:
        """Level of the root (leaves have level 0) if C has one row per node of a binary tree; otherwise None."""
        return None

    @property
    def block(self) -> Strategy:
        """The strategy of one block if C repeats a block along its diagonal; otherwise `self`."""
        return self

    @property
    def blocks(self) -> int:
        """Number of times that C repeats `block`."""
        return 1

    def gram(self, *, absolute: bool = False) -> Gram:
        """Return the Gram matrix X = C^T C; with `absolute`, the Gram matrix of the absolute values |C|.

        This default uses the dense C. Override this method if C has structure.
        """
        matrix = self.encoder()
        return DenseGram(np.abs(matrix) if absolute else matrix)

    def first(self, steps: int) -> Strategy:
        """Return a strategy with at least the first `steps` steps, for the accounting of a run that stops early.

        The result must contain every row of C that these steps complete. It may contain more rows, up to all of C.
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
    """Return `value` as a float64 array; raise unless it has `rows` rows along its first axis."""
    value = np.asarray(value, dtype=np.float64)
    if value.ndim == 0 or len(value) != rows:
        raise InvalidArgument(
            f"{type(strategy).__name__}.{method} needs {rows} rows along the first axis. Got shape {value.shape}.",
            hint=f"the strategy has {strategy.steps} steps, and C has {strategy.rows} rows",
        )
    return value


def exponents(entries: Array) -> tuple[int, int]:
    """Return the smallest and the largest binary exponent of the non-zero entries, as defined by `numpy.frexp`."""
    found = np.frexp(entries[entries != 0])[1]
    return int(found.min()), int(found.max())


def check_steps(owner: str, steps: int) -> int:
    """Return `steps` as an int; raise unless it is positive."""
    return _check.positive_integer(owner, "steps", steps, "a run has at least one step")
