"""The identity strategy, which gives independent noise as in DP-SGD."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Strategy, check_steps
from antiphase.strategies._recursion import Feedback
from antiphase.strategies._stream import Stream
from antiphase.strategies._toeplitz_gram import ToeplitzGram


@final
@record
class Identity(Strategy):
    """The strategy matrix C = I, which gives independent noise in every step, as in DP-SGD.

    Args:
        steps: number of steps, n.

    >>> Identity(2).encoder().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("Identity", self.steps))

    @property
    def diagonals(self) -> int:
        """Always 1, because only the main diagonal is non-zero."""
        return 1

    @property
    def is_extensible(self) -> bool:
        """Always true: no entry depends on the number of steps."""
        return True

    @property
    def first_is_monotone(self) -> bool:
        """Always true: no entry is negative."""
        return True

    def first(self, steps: int) -> Identity:
        """Return the identity for fewer steps."""
        return replace(self, steps=steps)

    def band_columns(self) -> Array:
        """Return one band of ones, shape (steps, 1)."""
        return np.ones((self.steps, 1))

    def toeplitz_column(self) -> Array:
        """Return the first column without its zeros: a single 1."""
        return np.ones(1)

    @property
    def stores_column(self) -> bool:
        """Always true: the column is a single number."""
        return True

    def gram(self, *, absolute: bool = False) -> ToeplitzGram:
        """Return the Gram matrix, which is the identity."""
        return ToeplitzGram(np.ones(1), self.steps)

    def encoding_stream(self) -> Stream:
        """Return a stream that returns its inputs unchanged."""
        return _IdentityEncoding()

    def recursion(self) -> Feedback:
        """Return a `Feedback` recursion without feedback, which returns z unchanged."""
        return Feedback.toeplitz(np.ones(1), self.steps)


class _IdentityEncoding(Stream):
    def step(self, value: Array) -> Array:
        return value[None]
