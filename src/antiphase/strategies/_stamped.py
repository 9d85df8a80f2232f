"""Stamped strategies: one strategy repeated, started afresh for every block of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Strategy, Stream, check_rows


@final
@record
class Stamped(Strategy):
    """C = I (x) C_0, the strategy C_0 repeated along the diagonal, with N = I (x) N_0.

    For a prefix sum on the online tree this is the restarted tree, where the noise of a finished block stays as it
    was in the block's last step. Where N_0 is the pseudo-inverse of C_0, N is that of C, the best decoder for
    every workload.

    Args:
        strategy: C_0 with N_0; a run has repeats x strategy.steps steps.
        repeats: how many blocks.

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

    @property
    def steps(self) -> int:  # type: ignore[override]
        """n."""
        return self.repeats * self.strategy.steps

    @property
    def rows(self) -> int:
        """m."""
        return self.repeats * self.strategy.rows

    @property
    def memory_copies(self) -> int:
        """Those of one block."""
        return self.strategy.memory_copies

    def rows_at(self, step: int) -> int:
        """As in the block that the step belongs to."""
        if not 0 <= step < self.steps:
            raise _check.invalid("Stamped", "step", f"in 0, ..., {self.steps - 1}", step, "the run is over")
        return self.strategy.rows_at(step % self.strategy.steps)

    def multiply(self, x: ArrayLike) -> Array:
        """C x along the first axis, all blocks at once."""
        x = check_rows(self, "multiply", x, self.steps)
        return self._blockwise(self.strategy.multiply, x, self.strategy.steps)

    def solve(self, z: ArrayLike) -> Array:
        """N z along the first axis, all blocks at once."""
        z = check_rows(self, "solve", z, self.rows)
        return self._blockwise(self.strategy.solve, z, self.strategy.rows)

    def encoding_stream(self) -> Stream:
        """C_0 x, started again for every block."""
        return _Restarted(self, self.strategy.encoding_stream)

    def noising_stream(self) -> Stream:
        """N_0 z, started again for every block."""
        return _Restarted(self, self.strategy.noising_stream)

    def _blockwise(self, apply: Callable[[Array], Array], x: Array, block: int) -> Array:
        side_by_side = np.swapaxes(x.reshape(self.repeats, block, *x.shape[1:]), 0, 1)
        out = np.swapaxes(apply(side_by_side), 0, 1)
        return out.reshape(self.repeats * out.shape[1], *x.shape[1:])


class _Restarted(Stream):
    def __init__(self, strategy: Stamped, start: Callable[[], Stream]) -> None:
        self._strategy, self._start = strategy, start
        self._stream, self._step = start(), 0

    def step(self, value: Array) -> Array:
        self._strategy.rows_at(self._step)  # refuses a step beyond the last block
        if self._step > 0 and self._step % self._strategy.strategy.steps == 0:
            self._stream = self._start()
        self._step += 1
        return self._stream.step(value)
