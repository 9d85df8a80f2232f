"""Banded lower-triangular strategies whose columns can all be different."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import final

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Rescale, Strategy, exponents
from antiphase.strategies._gram import BandedGram
from antiphase.strategies._recursion import Feedback
from antiphase.strategies._stream import Stream


@final
@record
class Banded(Strategy):
    """A lower-triangular strategy matrix C with `bands` diagonals: C[j + r, j] = columns[j, r].

    With cjr = columns[j, r], 3 steps and 2 bands, C is

        c00
        c01 c10
            c11 c20

    and c21 must be 0, because it lies below the last row.

    Args:
        columns: array of shape (steps, bands) with bands <= steps. The diagonal entries, columns[j, 0], must not be
            zero. Entries with j + r >= steps, which lie below the last row of C, must be zero.

    Reference: Choquette-Choo et al. 2023 (amplified banded).

    >>> Banded([[2.0, 1.0], [3.0, 0.0]]).encoder().tolist()
    [[2.0, 0.0], [1.0, 3.0]]
    """

    columns: Array

    def __post_init__(self) -> None:
        columns = _check.array("Banded", "columns", self.columns, 2)
        object.__setattr__(self, "columns", columns)
        steps, bands = columns.shape
        if bands > steps:
            raise _check.invalid(
                "Banded",
                "columns",
                f"at most {steps} bands wide",
                f"{bands} bands",
                "pass columns of shape (steps, bands)",
            )
        if (columns[:, 0] == 0).any():
            raise _check.invalid(
                "Banded",
                "columns",
                "non-zero on the diagonal",
                "a zero in columns[:, 0]",
                "C must be invertible, so set every columns[j, 0] to a non-zero number",
            )
        if outside(columns).any():
            raise _check.invalid(
                "Banded",
                "columns",
                "zero below the last row",
                "a non-zero entry with j + r >= steps",
                "set columns[j, r] = 0 where j + r >= steps",
            )

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps, n."""
        return int(self.columns.shape[0])

    @property
    def bands(self) -> int:
        """Number of diagonals, including the main one."""
        return int(self.columns.shape[1])

    @property
    def diagonals(self) -> int:
        """Number of diagonals of C up to the last non-zero one."""
        return last_nonzero(np.abs(self.columns).max(axis=0))

    @property
    def first_is_monotone(self) -> bool:
        """True if no entry of C is negative."""
        return bool(self.columns.min() >= 0.0)

    def first(self, steps: int) -> Banded:
        """Return the leading steps x steps block of C."""
        columns = self.columns[:steps, :steps]
        return Banded(columns - outside(columns))

    def band_columns(self) -> Array:
        """Return `columns`."""
        return self.columns

    def gram(self, *, absolute: bool = False) -> BandedGram:
        """Return the Gram matrix C^T C, which has as many bands as C."""
        return BandedGram(np.abs(self.columns) if absolute else self.columns)

    def scale_exponents(self) -> tuple[int, int]:
        """Return the smallest and the largest binary exponent of the diagonal entries."""
        return exponents(self.columns[:, 0])

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Banded:
        """Return the strategy with its columns scaled."""
        return replace(self, columns=scale(self.columns))

    def encoding_stream(self) -> Stream:
        """Return a stream that computes C x from the current input and the `bands` - 1 inputs before it."""
        return _BandedEncoding(row_bands(self.columns))

    def recursion(self) -> Feedback:
        """Return a `Feedback` recursion: forward substitution with C, which uses the last `bands` - 1 outputs."""
        return Feedback(self.steps, self.bands, lambda columns, lags: self.columns[columns, lags])


def row_bands(columns: Array) -> Array:
    """Convert columns[j, r] = C[j + r, j] to rows[t, r] = C[t, t - r], with zeros where t < r."""
    rows = np.zeros_like(columns)
    for r in range(columns.shape[1]):
        rows[r:, r] = columns[: len(columns) - r, r]
    return rows


def last_nonzero(values: Array) -> int:
    """Return 1 + the index of the last non-zero number."""
    return int(np.flatnonzero(values)[-1]) + 1


def outside(columns: Array) -> Array:
    """Return the entries of `columns` that lie below the last row of C, with zeros elsewhere."""
    steps, bands = columns.shape
    j, r = np.ogrid[:steps, :bands]
    return np.where(j + r >= steps, columns, 0.0)


class _BandedEncoding(Stream):
    def __init__(self, rows: Array) -> None:
        self._rows = rows
        self._past: deque[Array] = deque(maxlen=rows.shape[1])
        self._step = 0

    def step(self, value: Array) -> Array:
        self._past.appendleft(value)
        row = self._rows[self._step]
        self._step += 1
        return sum((c * x for c, x in zip(row, self._past, strict=False)), np.zeros_like(value))[None]
