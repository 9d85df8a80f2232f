"""Balls in bins: one bin an example, kept for all epochs."""

from __future__ import annotations

from typing import final

from antiphase._participation import BallsInBins
from antiphase._samplers.base import Sampler
from antiphase._samplers.groups import Groups
from antiphase._samplers.stream import Ids
from antiphase._secret import Secret


@final
class BallsInBinsSampler(Sampler):
    """Each example draws a bin once; step t processes bin t mod steps_per_epoch, in every epoch the same.

    **Guarantee**: bins are independent and uniform and never drawn again, which is what the dominating pair
    of balls-in-bins batching assumes. Zero-out; add-or-remove too without `max_batch`. With `max_batch` the
    bins stay and the examples dropped from one are drawn afresh at each step.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), Def. 3.1 and App. I.
    """

    def __init__(self, participation: BallsInBins, examples: int, steps: int, secret: Secret) -> None:
        self._bins = participation.steps_per_epoch
        super().__init__(participation, examples, steps, secret, self._bins)
        self._groups = Groups(secret, self._labels, self.examples, self._bins)

    def _draw(self, step: int) -> Ids:
        return self._groups.members(step % self._bins).copy()
