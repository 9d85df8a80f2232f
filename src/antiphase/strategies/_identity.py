"""Independent noise: C = I, which is DP-SGD."""

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
    """C = I: fresh noise in every step, as DP-SGD adds it.

    Args:
        steps: n.

    >>> Identity(2).encoder().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    steps: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("Identity", self.steps))

    @property
    def memory_copies(self) -> int:
        """None needed."""
        return 0

    @property
    def diagonals(self) -> int:
        """One."""
        return 1

    @property
    def is_extensible(self) -> bool:
        """Always: no entry depends on the number of steps."""
        return True

    @property
    def first_is_monotone(self) -> bool:
        """Always."""
        return True

    def first(self, steps: int) -> Identity:
        """The leading block."""
        return replace(self, steps=steps)

    def band_columns(self) -> Array:
        """A column of ones."""
        return np.ones((self.steps, 1))

    def toeplitz_column(self) -> Array:
        """A single one."""
        return np.ones(1)

    @property
    def stores_column(self) -> bool:
        """Always."""
        return True

    def gram(self, *, absolute: bool = False) -> ToeplitzGram:
        """I."""
        return ToeplitzGram(np.ones(1), self.steps)

    def encoding_stream(self) -> Stream:
        """x passes through."""
        return _IdentityEncoding()

    def recursion(self) -> Feedback:
        """z passes through."""
        return Feedback.toeplitz(np.ones(1), self.steps)


class _IdentityEncoding(Stream):
    def step(self, value: Array) -> Array:
        return value[None]
