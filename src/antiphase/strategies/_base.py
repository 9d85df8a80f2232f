"""What every strategy offers: C and N as dense arrays, as whole products and as streams."""

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

    Rows of C are ordered by the step that completes them; `rows_at` says how many each step completes.
    """

    steps: int

    @property
    @abstractmethod
    def memory_copies(self) -> int:
        """Model-sized buffers that a noising stream holds between steps."""

    @abstractmethod
    def encoding_stream(self) -> Stream:
        """C as a stream."""

    @abstractmethod
    def recursion(self) -> Recursion:
        """How N z is made, as one of the records of `_recursion.py`; everything that makes noise reads it."""

    def noising_stream(self) -> Stream:
        """N as a stream."""
        return noising_stream(self.recursion())

    @property
    def rows(self) -> int:
        """Number of rows of C, m."""
        return self.steps

    @property
    def is_causal(self) -> bool:
        """Whether the noise in a step needs only rows of C x + z that the steps up to it complete."""
        return self.recursion().is_causal

    @property
    def diagonals(self) -> int | None:
        """Number of diagonals of a lower-triangular C up to the last that is not zero; None for any other C.

        With at most b diagonals, steps j, j + b, j + 2b, ... have no row of C in common.
        """
        return None

    @property
    def is_extensible(self) -> bool:
        """Whether N for more steps, cut to the steps so far, is N: what was released is then part of the longer run."""
        return False

    @property
    def first_is_monotone(self) -> bool:
        """Whether the bounds on the sensitivity of `first(steps)` only grow with `steps`.

        They do where C has no negative entry, and where `first` is all of C.
        """
        return False

    def scale_exponents(self) -> tuple[int, int]:
        """The smallest and the largest power of two among the entries of C that noise is divided by.

        These are the diagonal entries of a lower-triangular C, and all entries of any other. (0, 0) for a strategy
        without a scale of its own.
        """
        return 0, 0

    @property
    def has_unit_columns(self) -> bool:
        """Whether C stays the same when its coefficients are scaled, because its columns are normalised."""
        return False

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Strategy | None:
        """The strategy with `scale` applied to the entries of C that it holds, or `inverse` to those of C^-1.

        None for a strategy without a scale of its own.
        """
        return None

    def band_columns(self) -> Array | None:
        """The bands of a lower-triangular C in the layout of `Banded`, [j, r] = C[j + r, j]; None where not at hand."""
        return None

    def toeplitz_column(self) -> Array | None:
        """The first column of a lower-triangular Toeplitz C, possibly without its trailing zeros; None for any other C.

        Raises `NotProved` if the column would have to be computed and is too long to be held in memory.
        """
        return None

    @property
    def stores_column(self) -> bool:
        """Whether `toeplitz_column` returns what the strategy holds anyway, however long."""
        return False

    @property
    def tree_height(self) -> int | None:
        """Level of the root if C has one row per node of a binary tree over the steps; None for any other C."""
        return None

    @property
    def block(self) -> Strategy:
        """The strategy of one block if C repeats it along the diagonal; else the strategy itself."""
        return self

    @property
    def blocks(self) -> int:
        """How many times C repeats `block`."""
        return 1

    def gram(self, *, absolute: bool = False) -> Gram:
        """The Gram matrix X = C^T C; with `absolute`, that of the entrywise |C|.

        Computed from the dense C; override it if C has structure.
        """
        matrix = self.encoder()
        return DenseGram(np.abs(matrix) if absolute else matrix)

    def first(self, steps: int) -> Strategy:
        """The rows of C that the first `steps` steps complete, on the first columns; or more of C, up to all of it."""
        return self

    def rows_at(self, step: int) -> int:
        """How many rows of z the noising stream takes in this step."""
        return 1

    def multiply(self, x: ArrayLike) -> Array:
        """C x along the first axis."""
        x = check_rows(self, "multiply", x, self.steps)
        stream = self.encoding_stream()
        return np.concatenate([stream.step(x[t]) for t in range(self.steps)])

    def solve(self, z: ArrayLike) -> Array:
        """N z along the first axis; for square C this is C^-1 z."""
        z = check_rows(self, "solve", z, self.rows)
        stream, start, out = self.noising_stream(), 0, np.empty((self.steps, *z.shape[1:]))
        for t in range(self.steps):
            stop = start + self.rows_at(t)
            out[t] = stream.step(z[start:stop])
            start = stop
        return out

    def encoder(self) -> Array:
        """C as a dense array, for small cases."""
        self._check_dense()
        return self.multiply(np.eye(self.steps))

    def noising(self) -> Array:
        """N as a dense array, for small cases."""
        self._check_dense()
        return self.solve(np.eye(self.rows))

    def _check_dense(self) -> None:
        if self.steps * self.rows > LARGEST_DENSE:
            raise NotEnoughMemory(
                f"A dense {self.rows} x {self.steps} matrix of {type(self).__name__} would not fit in memory.",
                hint="use multiply, solve or a stream, which need only a few buffers",
            )


def check_rows(strategy: Strategy, method: str, value: ArrayLike, rows: int) -> Array:
    """`value` as float64 with `rows` rows along its first axis."""
    value = np.asarray(value, dtype=np.float64)
    if value.ndim == 0 or len(value) != rows:
        raise InvalidArgument(
            f"{type(strategy).__name__}.{method} needs {rows} rows along the first axis. Got shape {value.shape}.",
            hint=f"the strategy has {strategy.steps} steps and {strategy.rows} rows",
        )
    return value


def exponents(entries: Array) -> tuple[int, int]:
    """The smallest and the largest power of two among the entries that are not zero."""
    found = np.frexp(entries[entries != 0])[1]
    return int(found.min()), int(found.max())


def check_steps(owner: str, steps: int) -> int:
    """`steps` as a positive int."""
    return _check.positive_integer(owner, "steps", steps, "a run has at least one step")
