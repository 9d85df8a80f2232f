"""Banded Toeplitz strategies, which have the same coefficients in every column."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._banded import Banded, last_nonzero, outside
from antiphase.strategies._base import Rescale, Strategy, check_rows, check_steps, exponents
from antiphase.strategies._recursion import Feedback, MovingSum
from antiphase.strategies._stream import Stream, noising_stream
from antiphase.strategies._toeplitz_gram import ToeplitzGram, convolve


@final
@record
class Toeplitz(Strategy):
    """A strategy matrix with C[i, j] = coefficients[i - j], optionally with every column scaled to norm 1.

    With `column_normalized`, C = T diag(1 / |T e_j|), where T is the Toeplitz matrix of the coefficients and e_j is the
    j-th unit vector. Columns near the end have fewer entries, so the remaining entries are larger. This C is not
    Toeplitz, and theorems about Toeplitz matrices are not applied to it.

    Args:
        coefficients: c_0, c_1, ..., at most `steps` numbers, with c_0 not zero. Missing coefficients are zero.
        steps: number of steps, n.
        column_normalized: whether to scale every column to norm 1.

    Reference: McKenna 2024 (scaling), section 2.

    >>> Toeplitz([1.0, 0.5], 3).encoder().tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.5, 1.0]]
    """

    coefficients: Array
    steps: int
    column_normalized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("Toeplitz", self.steps))
        object.__setattr__(self, "coefficients", filter_coefficients("Toeplitz", self.coefficients, self.steps))
        hint = "True scales every column to norm 1"
        normalized = _check.boolean("Toeplitz", "column_normalized", self.column_normalized, hint)
        object.__setattr__(self, "column_normalized", normalized)

    @classmethod
    def square_root(cls, steps: int, bands: int | None = None) -> Toeplitz:
        """Return the strategy with the first `bands` coefficients of (1 - x)^(-1/2), the square root of prefix sums.

        With all bands, the default, the strategy is optimal for a single participation, up to lower-order terms.

        Args:
            steps: number of steps, n.
            bands: number of coefficients; None for all.

        Reference: Fichtenberger, Henzinger and Upadhyay 2023; truncated to bands: Kalinin and Lampert 2024.

        >>> Toeplitz.square_root(3).coefficients.tolist()
        [1.0, 0.5, 0.375]
        """
        n = check_steps("Toeplitz.square_root", steps)
        bands = n if bands is None else _check.positive_integer("Toeplitz.square_root", "bands", bands)
        i = np.arange(1, bands, dtype=np.float64)
        return cls(np.concatenate([[1.0], np.cumprod((i - 0.5) / i)]), n)

    @property
    def bands(self) -> int:
        """Number of diagonals, including the main one."""
        return len(self.coefficients)

    def column_scales(self) -> Array:
        """Return |T e_j|, the norm of column j of T, for every j if columns are normalised; otherwise ones."""
        if not self.column_normalized:
            return np.ones(self.steps)
        inside = np.minimum(self.bands, np.arange(self.steps, 0, -1))
        exponent = np.frexp(np.abs(self.coefficients).max())[1]  # divide by 2^exponent, so that squares do not overflow
        norms = np.sqrt(np.cumsum(np.ldexp(self.coefficients, -exponent) ** 2))
        return np.asarray(np.ldexp(norms, exponent)[inside - 1])

    def columns(self) -> Array:
        """Return the bands in the layout of `Banded.columns`: entry [j, r] is C[j + r, j]."""
        columns = self.coefficients / self.column_scales()[:, None]
        return columns - outside(columns)

    def multiply(self, x: ArrayLike) -> Array:
        """Return C x along the first axis."""
        x = check_rows(self, "multiply", x, self.steps)
        scales = self.column_scales().reshape(-1, *[1] * (x.ndim - 1))
        return convolve(self.coefficients, x / scales)

    @property
    def diagonals(self) -> int:
        """Number of diagonals up to the last non-zero coefficient."""
        return last_nonzero(self.coefficients)

    @property
    def is_extensible(self) -> bool:
        """True unless columns are normalised, because normalised columns depend on the number of steps."""
        return not self.column_normalized

    @property
    def first_is_monotone(self) -> bool:
        """True if no coefficient is negative."""
        return bool(self.coefficients.min() >= 0.0)

    def first(self, steps: int) -> Toeplitz | Banded:
        """Return the leading steps x steps block of C.

        If columns are normalised, the result is a `Banded` strategy whose columns keep the scales of the full run.
        """
        if self.column_normalized:
            return Banded(self.columns()).first(steps)
        return replace(self, coefficients=self.coefficients[:steps], steps=steps)

    def band_columns(self) -> Array:
        """Return `columns()`."""
        return self.columns()

    def toeplitz_column(self) -> Array | None:
        """Return the coefficients, or None if columns are normalised."""
        return None if self.column_normalized else self.coefficients

    @property
    def stores_column(self) -> bool:
        """Always true: the coefficients are stored."""
        return True

    def gram(self, *, absolute: bool = False) -> ToeplitzGram:
        """Return the Gram matrix C^T C, computed from the coefficients."""
        coefficients = np.abs(self.coefficients) if absolute else self.coefficients
        return ToeplitzGram(coefficients, self.steps, self.column_scales() if self.column_normalized else None)

    def scale_exponents(self) -> tuple[int, int]:
        """Return the binary exponent of c_0 twice, because c_0 is every diagonal entry of T."""
        return exponents(self.coefficients[:1])

    @property
    def has_unit_columns(self) -> bool:
        """True if columns are scaled to norm 1."""
        return self.column_normalized

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Toeplitz:
        """Return the strategy with its coefficients scaled."""
        return replace(self, coefficients=scale(self.coefficients))

    def encoding_stream(self) -> Stream:
        """Return a stream that computes C x from the current input and the `bands` - 1 inputs before it."""
        return _ToeplitzEncoding(self)

    def recursion(self) -> Feedback:
        """Return a `Feedback` recursion: forward substitution with C, which uses the last `bands` - 1 outputs."""
        return Feedback.toeplitz(
            self.coefficients, self.steps, self.column_scales() if self.column_normalized else None
        )


class _ToeplitzEncoding(Stream):
    def __init__(self, strategy: Toeplitz) -> None:
        self._sum = noising_stream(MovingSum(strategy.steps, strategy.coefficients))
        self._scales = 1.0 / strategy.column_scales()
        self._step = 0

    def step(self, value: Array) -> Array:
        self._step += 1
        return self._sum.step((value * self._scales[self._step - 1])[None])[None]


def filter_coefficients(owner: str, coefficients: ArrayLike, steps: int) -> Array:
    """Return the coefficients as an array; raise unless they define an invertible Toeplitz matrix of `steps` steps."""
    checked = _check.array(owner, "coefficients", coefficients, 1)
    if len(checked) > steps:
        raise _check.invalid(
            owner,
            "coefficients",
            f"at most {steps} numbers, one per step",
            f"{len(checked)} numbers",
            f"pass only the first {steps}",
        )
    if checked[0] == 0:
        hint = "C must be invertible, so the first coefficient must not be 0"
        raise _check.invalid(owner, "coefficients", "non-zero in its first entry", 0.0, hint)
    return checked
