"""Choose the correlator for a recursion.

A recursion is a record that says how to compute the noise of a strategy. A correlator computes this noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise.correlator import Correlator, Noise, Part, Scratch, White
from antiphase._noise.feedback import BuffersCorrelator, FeedbackCorrelator, IndependentCorrelator
from antiphase._noise.moving_sum import RegeneratedSum, StoredSum
from antiphase._noise.tree import TreeCorrelator
from antiphase._noise.whole import WholeCorrelator
from antiphase.strategies import Buffers, Feedback, MovingSum, Recursion, Restart, TreeNodes, WholeMatrix


def choose(
    recursion: Recursion,
    factor: float,
    entries: int,
    dtype: np.dtype[Any],
    *,
    lookahead: int | None = None,
    regenerate: bool = False,
    file: Path | None = None,
) -> Correlator:
    """Return the correlator for a recursion.

    Args:
        recursion: description of how to compute N z, where N is the noising matrix and z the white noise.
        factor: number that N z is multiplied by.
        entries: number of entries of the noise vector.
        dtype: float32 or float64.
        lookahead: number of steps computed at once if C is lower triangular; None for the default.
        regenerate: for BandedInverse, whether to draw old rows of z again instead of storing them.
        file: path for strategies in which each step needs all of z. The noise of all steps is then stored in a
            temporary file next to this path. None to store it in memory.
    """
    common = (factor, entries, dtype)
    if isinstance(recursion, Restart):
        inner = choose(recursion.inner, *common, lookahead=lookahead, regenerate=regenerate, file=file)
        return RestartCorrelator(recursion, inner)
    if regenerate and not isinstance(recursion, MovingSum):
        raise invalid("NoiseStream", "regenerate", "False for this strategy", True, "use regenerate=False")
    made: Correlator | None = None
    match recursion:
        case Feedback(bands=1):
            made = IndependentCorrelator(recursion, *common)
        case Feedback():
            made = FeedbackCorrelator(recursion, *common, lookahead)
        case MovingSum():
            made = RegeneratedSum(recursion, *common) if regenerate else StoredSum(recursion, *common)
        case Buffers():
            made = BuffersCorrelator(recursion, *common)
        case TreeNodes():
            made = TreeCorrelator(recursion, *common)
        case WholeMatrix():
            made = WholeCorrelator(recursion, *common, file)
    if made is None:
        raise InvalidArgument(
            f"There is no noise stream for the recursion {type(recursion).__name__}.",
            hint="return one of the recursions of antiphase.strategies from Strategy.recursion()",
        )
    return made


@final
class RestartCorrelator(Correlator):
    """Restarts an inner correlator for each block of steps.

    Block k uses rows k m, ..., k m + m - 1 of z, where m is the number of rows of the inner recursion.
    """

    recursion: Restart

    def __init__(self, recursion: Restart, inner: Correlator) -> None:
        self._inner = inner
        self.part = inner.part
        self.is_replayed = inner.is_replayed
        super().__init__(recursion, inner.factor, inner.entries, inner.dtype)
        self.state = inner.state

    def state_rows(self) -> int:
        """Return 0, because the inner correlator holds the state."""
        return 0

    def begin(self, step: int) -> None:
        """Begin a step of the inner correlator, which is reset at the first step of a block."""
        block, inner_step = divmod(step, self.recursion.inner.steps)
        if inner_step == 0:
            self._inner.reset()
        self._inner.made = self.made if inner_step else 0
        self._first_row = block * self.recursion.inner.rows
        self._inner.begin(inner_step)

    def make(self, part: Part, white: White, scratch: Scratch, out: Noise) -> None:
        """Compute the inner noise from this block's rows of z."""
        first = self._first_row
        self._inner.make(part, lambda row, z: white(first + row, z), scratch, out)

    def end(self) -> None:
        """End the step of the inner correlator."""
        self._inner.end()
        self.made = self._inner.made

    def reset(self) -> None:
        """Reset the inner correlator."""
        self._inner.reset()

    def replay_from(self, step: int) -> int:
        """Return the step from which to replay. It is in the same block as `step`."""
        steps = self.recursion.inner.steps
        return step // steps * steps + self._inner.replay_from(step % steps)
