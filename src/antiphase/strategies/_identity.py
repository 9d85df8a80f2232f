"""Independent noise: C = I, which is DP-SGD."""

from __future__ import annotations

from typing import final

from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Strategy, Stream, check_steps


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

    def encoding_stream(self) -> Stream:
        """x passes through."""
        return _Encoding()

    def noising_stream(self) -> Stream:
        """z passes through."""
        return _Noising()


class _Encoding(Stream):
    def step(self, value: Array) -> Array:
        return value[None]


class _Noising(Stream):
    def step(self, value: Array) -> Array:
        return value[0]
