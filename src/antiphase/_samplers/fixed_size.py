"""Batches of one size, without replacement, from one group after another."""

from __future__ import annotations

from typing import final

import numpy as np

from antiphase._check import invalid
from antiphase._participation import FixedSize
from antiphase._samplers.base import Sampler
from antiphase._samplers.cycle import Slots
from antiphase._samplers.stream import Ids, Stream
from antiphase._secret import Secret


@final
class FixedSizeSampler(Sampler):
    """Step t draws batch_size examples of group t mod groups; every subset of that size is equally likely.

    **Guarantee**: draws are independent over steps. Groups have examples // groups members or one more, so
    the largest sampling probability is batch_size / (examples // groups). An example's group is a function
    of (secret, example id) alone, so replacing an example moves none: replace adjacency. Not add-or-remove:
    an example more can push another out of the batch.

    Reference: Choquette-Choo et al. 2023 (amplified banded), Alg. 2.
    """

    def __init__(self, participation: FixedSize, examples: int, steps: int, secret: Secret) -> None:
        groups, size = participation.groups, participation.batch_size
        super().__init__(participation, examples, steps, secret, groups, size)
        if size > self.examples // groups:
            raise invalid(
                "FixedSize",
                "batch_size",
                f"at most {self.examples // groups}, the smallest of {groups} groups of {self.examples} examples",
                size,
                "use a smaller batch or fewer groups",
            )
        self._groups, self._size = groups, size
        self._slots = Slots(secret, self._labels, self.examples, groups)
        self._stream = Stream(secret, (*self._labels, "subset"))
        self.independent_assignment = False

    def _draw(self, step: int) -> Ids:
        from antiphase._kernels import random_subset

        members = self._slots.members(step % self._groups)
        chosen: Ids = members[np.sort(random_subset(self._stream.draws(step, self._size), members.size))]
        return chosen
