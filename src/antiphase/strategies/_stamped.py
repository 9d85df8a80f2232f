"""Stamped strategies, which repeat one strategy for every block of steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Rescale, Strategy, check_rows
from antiphase.strategies._gram import BlockGram
from antiphase.strategies._recursion import Restart
from antiphase.strategies._stream import Stream


@final
@record
class Stamped(Strategy):
    """The strategy C_0 of one block, repeated along the diagonal: C = I (x) C_0 and N = I (x) N_0 (Kronecker products).

    N_0 is the noising matrix of one block. If C_0 is a `Tree` with its default decoder and the workload is a prefix
    sum, this is the restarted tree mechanism. The noise in the last prefix sum of a completed block then stays in all
    later prefix sums. If N_0 is the pseudo-inverse of C_0, then N is the pseudo-inverse of C and has the smallest error
    of all left inverses of C, for every workload.

    Args:
        strategy: the strategy of one block; a run has repeats * strategy.steps steps.
        repeats: number of blocks.

    Reference: Choquette-Choo et al. 2023 (multi-epoch), App. D.4.

    >>> from antiphase.strategies import Toeplitz
    >>> Stamped(Toeplitz([1.0, 0.5], 2), 2).encoder().tolist()
    [[1.0, 0.0, 0.0, 0.0], [0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.5, 1.0]]
    """

    strategy: Strategy
    repeats: int

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise _check.invalid(
                "Stamped", "strategy", "a strategy", self.strategy, "pass the strategy of one block, such as Tree(100)"
            )
        repeats = _check.positive_integer("Stamped", "repeats", self.repeats, "a run has at least one block")
        object.__setattr__(self, "repeats", repeats)
        most = _check.LARGEST_COUNT // self.strategy.steps
        if repeats > most:
            must = f"at most {most}, because a run has at most 2^53 steps"
            raise _check.invalid("Stamped", "repeats", must, repeats, "check for a typo")

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps, n."""
        return self.repeats * self.strategy.steps

    @property
    def rows(self) -> int:
        """Number of rows of C, m."""
        return self.repeats * self.strategy.rows

    @property
    def memory_copies(self) -> int:
        """Number of model-sized buffers that one block needs between steps."""
        return self.strategy.memory_copies

    def rows_at(self, step: int) -> int:
        """Return the number of rows of z, the random draws, that the noising stream takes in this step."""
        if not 0 <= step < self.steps:
            raise _check.invalid(
                "Stamped", "step", f"in 0, ..., {self.steps - 1}", step, "the run is over; plan a longer one"
            )
        return self.strategy.rows_at(step % self.strategy.steps)

    def multiply(self, x: ArrayLike) -> Array:
        """Return C x along the first axis, for all blocks at once."""
        x = check_rows(self, "multiply", x, self.steps)
        return self._blockwise(self.strategy.multiply, x, self.strategy.steps)

    def solve(self, z: ArrayLike) -> Array:
        """Return N z along the first axis, for all blocks at once."""
        z = check_rows(self, "solve", z, self.rows)
        return self._blockwise(self.strategy.solve, z, self.strategy.rows)

    @property
    def diagonals(self) -> int | None:
        """Number of diagonals of one block."""
        return self.strategy.diagonals

    @property
    def first_is_monotone(self) -> bool:
        """Always true: `first` returns whole blocks, so C only gains rows and columns as `steps` grows."""
        return True

    def first(self, steps: int) -> Stamped:
        """Return all blocks up to and including the block of step `steps` - 1."""
        return Stamped(self.strategy, -(-steps // self.strategy.steps))

    @property
    def block(self) -> Strategy:
        """The strategy of one block, C_0."""
        return self.strategy

    @property
    def blocks(self) -> int:
        """Number of blocks, `repeats`."""
        return self.repeats

    def gram(self, *, absolute: bool = False) -> BlockGram:
        """Return the Gram matrix of one block, repeated along the diagonal."""
        return BlockGram(self.strategy.gram(absolute=absolute), self.repeats)

    def scale_exponents(self) -> tuple[int, int]:
        """Return the `scale_exponents` of one block."""
        return self.strategy.scale_exponents()

    @property
    def has_unit_columns(self) -> bool:
        """True if the columns of one block are scaled to norm 1."""
        return self.strategy.has_unit_columns

    def rescaled(self, scale: Rescale, inverse: Rescale) -> Stamped | None:
        """Return the strategy with its block rescaled, or None if the block cannot be rescaled."""
        block = self.strategy.rescaled(scale, inverse)
        return None if block is None else replace(self, strategy=block)

    def encoding_stream(self) -> Stream:
        """Return a stream that computes C x with a new encoding stream of C_0 for each block."""
        return _StampedEncoding(self)

    def recursion(self) -> Restart:
        """Return a `Restart` recursion, which runs the recursion of one block again for every block."""
        return Restart(self.strategy.recursion(), self.repeats)

    def _blockwise(self, apply: Callable[[Array], Array], x: Array, block: int) -> Array:
        side_by_side = np.swapaxes(x.reshape(self.repeats, block, *x.shape[1:]), 0, 1)
        out = np.swapaxes(apply(side_by_side), 0, 1)
        return out.reshape(self.repeats * out.shape[1], *x.shape[1:])


class _StampedEncoding(Stream):
    def __init__(self, strategy: Stamped) -> None:
        self._strategy = strategy
        self._stream, self._step = strategy.strategy.encoding_stream(), 0

    def step(self, value: Array) -> Array:
        self._strategy.rows_at(self._step)  # raises if the step is beyond the last block
        if self._step > 0 and self._step % self._strategy.strategy.steps == 0:
            self._stream = self._strategy.strategy.encoding_stream()
        self._step += 1
        return self._stream.step(value)
