"""From a recursion to the correlator that makes its noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise.buffers import DecayingBuffers
from antiphase._noise.correlator import Correlator
from antiphase._noise.feedback import PastOutputs
from antiphase._noise.independent import Independent
from antiphase._noise.moving_sum import RegeneratedSum, StoredSum
from antiphase._noise.stamped import Restarted
from antiphase._noise.tree import OnlineTree
from antiphase._noise.whole import Whole
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
    """The correlator of a recursion.

    Args:
        recursion: how N z is made.
        factor: what N z is multiplied by.
        entries: how many coordinates the stream holds.
        dtype: float32 or float64.
        lookahead: steps made at once, for lower-triangular C.
        regenerate: draw old z again instead of keeping it, for BandedInverse.
        file: where to keep the noise of all steps, for strategies that need all of z.
    """
    common = (factor, entries, dtype)
    if isinstance(recursion, Restart):
        inner = choose(recursion.inner, *common, lookahead=lookahead, regenerate=regenerate, file=file)
        return Restarted(recursion, inner)
    if regenerate and not isinstance(recursion, MovingSum):
        raise invalid("NoiseStream", "regenerate", "False here", True, "only BandedInverse can draw its old z again")
    made: Correlator | None = None
    match recursion:
        case Feedback(bands=1):
            made = Independent(recursion, *common)
        case Feedback():
            made = PastOutputs(recursion, *common, lookahead)
        case MovingSum():
            made = RegeneratedSum(recursion, *common) if regenerate else StoredSum(recursion, *common)
        case Buffers():
            made = DecayingBuffers(recursion, *common)
        case TreeNodes():
            made = OnlineTree(recursion, *common)
        case WholeMatrix():
            made = Whole(recursion, *common, file)
    if made is None:
        raise InvalidArgument(
            f"No noise stream is known for the recursion {type(recursion).__name__}.",
            hint="describe the strategy with one of the recursions in antiphase.strategies",
        )
    return made
