"""Stamped: the correlator of one block, started again for every block with new rows of z."""

from __future__ import annotations

from typing import final

from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase.strategies import Restart


@final
class Restarted(Correlator):
    """Block k uses rows k m, ..., k m + m - 1 of z, m those of the inner recursion."""

    recursion: Restart

    def __init__(self, recursion: Restart, inner: Correlator) -> None:
        self._inner = inner
        self.part = inner.part
        self.is_replayed = inner.is_replayed
        super().__init__(recursion, inner.factor, inner.entries, inner.dtype)
        self.state = inner.state

    def state_rows(self) -> int:
        """Held by the inner correlator."""
        return 0

    def begin(self, step: int) -> None:
        """Start again at the first step of a block."""
        block, inner_step = divmod(step, self.recursion.inner.steps)
        if inner_step == 0:
            self._inner.reset()
        self._inner.made = self.made if inner_step else 0
        self._first_row = block * self.recursion.inner.rows
        self._inner.begin(inner_step)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """The inner noise, from the rows of this block."""
        first = self._first_row
        self._inner.make(part, lambda row, z: white(first + row, z), scratch, out)

    def end(self) -> None:
        """Pass on."""
        self._inner.end()
        self.made = self._inner.made

    def reset(self) -> None:
        """Pass on."""
        self._inner.reset()

    def replay_from(self, step: int) -> int:
        """Within the block."""
        steps = self.recursion.inner.steps
        return step // steps * steps + self._inner.replay_from(step % steps)
