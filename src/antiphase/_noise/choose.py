"""From a strategy to the correlator that makes its noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._noise.buffers import Buffers
from antiphase._noise.correlator import Correlator
from antiphase._noise.entries import bands_of
from antiphase._noise.feedback import Feedback
from antiphase._noise.independent import Independent
from antiphase._noise.moving_sum import MovingSum, RegeneratedSum
from antiphase._noise.stamped import Restarted
from antiphase._noise.tree import OnlineTree
from antiphase._noise.whole import Whole
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Fourier, Identity, Stamped, Strategy, Toeplitz, Tree

SIMPLE: dict[type[Strategy], type[Correlator]] = {Identity: Independent, BLT: Buffers, Tree: OnlineTree}


def choose(
    strategy: Strategy,
    factor: float,
    entries: int,
    dtype: np.dtype[Any],
    *,
    lookahead: int | None = None,
    regenerate: bool = False,
    file: Path | None = None,
) -> Correlator:
    """The correlator of a strategy.

    Args:
        strategy: C.
        factor: what N z is multiplied by.
        entries: how many coordinates the stream holds.
        dtype: float32 or float64.
        lookahead: steps made at once, for lower-triangular C.
        regenerate: draw old z again instead of keeping it, for BandedInverse.
        file: where to keep the noise of all steps, for strategies that need all of z.
    """
    common = (factor, entries, dtype)
    if isinstance(strategy, Stamped):
        inner = choose(strategy.strategy, *common, lookahead=lookahead, regenerate=regenerate, file=file)
        return Restarted(strategy, inner)
    if regenerate and not isinstance(strategy, BandedInverse):
        raise invalid("NoiseStream", "regenerate", "False here", True, "only BandedInverse can draw its old z again")
    if isinstance(strategy, (Banded, Toeplitz)) or (isinstance(strategy, Dense) and strategy.is_lower_triangular):
        return Independent(strategy, *common) if bands_of(strategy) == 1 else Feedback(strategy, *common, lookahead)
    if isinstance(strategy, BandedInverse):
        return RegeneratedSum(strategy, *common) if regenerate else MovingSum(strategy, *common)
    if isinstance(strategy, (Dense, Fourier)) or (isinstance(strategy, Tree) and strategy.decoder == "full"):
        return Whole(strategy, *common, file)
    for kind, correlator in SIMPLE.items():
        if isinstance(strategy, kind):
            return correlator(strategy, *common)
    raise InvalidArgument(
        f"No noise stream is known for {type(strategy).__name__}.", hint="use a strategy from antiphase.strategies"
    )
