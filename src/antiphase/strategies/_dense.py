"""Strategies stored as dense matrices."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Rescale, Strategy, check_rows, exponents
from antiphase.strategies._recursion import Feedback, WholeMatrix
from antiphase.strategies._stream import Stream

# Smallest accepted ratio of the smallest to the largest singular value of C. Below this limit, rounding errors in the
# pseudo-inverse corrupt the noise in all directions. Below about 1e-15, some directions receive no noise at all.
NEARLY_SINGULAR = 1e-9


@final
@record
class Dense(Strategy):
    """An explicit m x n matrix C with full column rank, usually square and lower triangular.

    If C is not lower triangular, its smallest singular value must be at least 1e-9 times the largest.

    The noising matrix N is C^-1 for square C and the pseudo-inverse otherwise. The pseudo-inverse has the smallest
    error of all left inverses, for every workload (Denisov et al. 2022, section 3). The privacy guarantee does not
    require C to be lower triangular, because step t releases only the gradient plus row t of N z, and the random draws
    z do not depend on the data.

    Args:
        matrix: C, of shape (rows, steps).

    >>> Dense([[2.0, 0.0], [1.0, 1.0]]).noising().tolist()
    [[0.5, 0.0], [-0.5, 1.0]]
    """

    matrix: Array

    def __post_init__(self) -> None:
        matrix = _check.array("Dense", "matrix", self.matrix, 2)
        object.__setattr__(self, "matrix", matrix)
        rows, steps = matrix.shape
        if rows < steps:
            raise _check.invalid(
                "Dense",
                "matrix",
                "at least as tall as wide",
                f"shape {matrix.shape}",
                "pass a matrix with one column per step and at least as many rows",
            )
        if self.is_lower_triangular:
            singular = bool((np.diag(matrix) == 0).any())
        else:
            singular = np.linalg.matrix_rank(matrix, rtol=NEARLY_SINGULAR) < steps
        if singular:
            raise _check.invalid(
                "Dense",
                "matrix",
                "of full column rank",
                "a singular matrix",
                "use a non-zero diagonal if the matrix is lower triangular, otherwise linearly independent columns",
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps, n."""
        return int(self.matrix.shape[1])

    @property
    def rows(self) -> int:
        """Number of rows of C, m."""
        return int(self.matrix.shape[0])

    @cached_property
    def is_lower_triangular(self) -> bool:
        """True if C is square with zeros above the diagonal."""
        rows, steps = self.matrix.shape
        return bool(rows == steps and not np.triu(self.matrix, 1).any())

    @property
    def memory_copies(self) -> int:
        """`steps`, because the noise of every step is stored."""
        return self.steps

    def rows_at(self, step: int) -> int:
        """Return 1 if C is lower triangular; otherwise `rows` for the first step and 0 for all other steps."""
        return 1 if self.is_lower_triangular else self.rows * (step == 0)

    def multiply(self, x: ArrayLike) -> Array:
        """Return C x along the first axis."""
        return np.tensordot(self.matrix, check_rows(self, "multiply", x, self.steps), axes=1)

    def solve(self, z: ArrayLike) -> Array:
        """Return N z along the first axis."""
        z = check_rows(self, "solve", z, self.rows)
        if not self.is_lower_triangular:
            return np.tensordot(np.linalg.pinv(self.matrix), z, axes=1)
        from scipy.linalg import solve_triangular

        return solve_triangular(self.matrix, z.reshape(len(z), -1), lower=True).reshape(z.shape)

    def encoder(self) -> Array:
        """Return C."""
        return self.matrix

    @property
    def diagonals(self) -> int | None:
        """Number of diagonals of a lower-triangular C, up to the last non-zero one; None for any other C."""
        if not self.is_lower_triangular:
            return None
        rows, columns = np.nonzero(self.matrix)
        return int((rows - columns).max()) + 1

    @property
    def first_is_monotone(self) -> bool:
        """True if no entry of C is negative."""
        return bool(self.matrix.min() >= 0.0)

    def first(self, steps: int) -> Dense:
        """Return the leading steps x steps block if C is lower triangular, otherwise all of C."""
        return Dense(self.matrix[:steps, :steps]) if self.is_lower_triangular else self

    def band_columns(self) -> Array | None:
        """Return all diagonals in the layout of `Banded` if C is lower triangular, otherwise None."""
        if not self.is_lower_triangular:
            return None
        n = self.steps
        out = np.zeros((n, n))
        for r in range(n):
            out[: n - r, r] = np.diagonal(self.matrix, -r)
        return out

    def scale_exponents(self) -> tuple[int, int]:
        """Return the smallest and the largest binary exponent of the diagonal of a lower-triangular C.

        For any other C, return the largest binary exponent of its entries twice.
        """
        if self.is_lower_triangular:
            return exponents(np.diag(self.matrix))
        high = exponents(self.matrix)[1]
        return high, high

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Dense:
        """Return the strategy with its matrix scaled."""
        return replace(self, matrix=scale(self.matrix))

    def encoding_stream(self) -> Stream:
        """Return a stream that yields one row of C x per step if C is lower triangular, or else all rows at the end."""
        return _DenseEncoding(self)

    def recursion(self) -> Feedback | WholeMatrix:
        """Return `Feedback` over all past outputs if C is lower triangular, otherwise `WholeMatrix`."""
        if not self.is_lower_triangular:
            return WholeMatrix(self)
        return Feedback(self.steps, self.steps, lambda columns, lags: self.matrix[columns + lags, columns])


class _DenseEncoding(Stream):
    def __init__(self, strategy: Dense) -> None:
        self._strategy = strategy
        self._past: list[Array] = []

    def step(self, value: Array) -> Array:
        self._past.append(np.asarray(value))
        t = len(self._past)
        if self._strategy.is_lower_triangular:
            return np.tensordot(self._strategy.matrix[t - 1 : t, :t], np.stack(self._past), axes=1)
        if t < self._strategy.steps:
            return np.empty((0, *value.shape))
        return self._strategy.multiply(np.stack(self._past))
