"""Samplers that draw a fresh subset in every step: Poisson, cyclic Poisson, and batches of one size."""

from __future__ import annotations

from decimal import Decimal
from typing import final

import numpy as np

from antiphase._check import invalid
from antiphase._participation import CyclicPoisson, FixedSize, Poisson
from antiphase._samplers.base import Sampler
from antiphase._samplers.bernoulli import Bernoulli
from antiphase._samplers.groups import Groups, Slots
from antiphase._samplers.stream import DrawStream, Ids
from antiphase._secret import Secret


@final
class PoissonSampler(Sampler):
    """Every example joins every step by a coin of its own.

    **Guarantee**: coins of probability `rate`, independent over examples and steps, as in `Bernoulli`.
    Zero-out; add-or-remove too without `max_batch` (and with it through the event for truncated Poisson
    sampling, which assumes the uniform subset that is kept here). A batch takes time in proportion to its
    size.
    """

    def __init__(self, participation: Poisson, examples: int, steps: int, secret: Secret) -> None:
        rate = float(participation.rate)
        super().__init__(participation, examples, steps, secret, rate.hex())
        self._coins = Bernoulli(secret, self._labels, Decimal(rate))

    def _draw(self, step: int) -> Ids:
        return self._coins.heads(step, self.examples)


@final
class CyclicPoissonSampler(Sampler):
    """Each example draws a group once; step t tosses a coin for each member of group t mod groups.

    **Guarantee**: groups are independent and uniform, coins independent with probability `rate`, so two
    participations are a multiple of `groups` apart and each step of a group is Poisson sampling from it.
    Zero-out; add-or-remove too without `max_batch`. The first batch groups all examples; each further one
    takes time in proportion to its size.

    Reference: Choquette-Choo et al. 2023 (amplified banded), Alg. 2 and Thm 4.
    """

    def __init__(self, participation: CyclicPoisson, examples: int, steps: int, secret: Secret) -> None:
        self._count, rate = participation.groups, float(participation.rate)
        super().__init__(participation, examples, steps, secret, self._count, rate.hex())
        self._groups = Groups(secret, self._labels, self.examples, self._count)
        self._coins = Bernoulli(secret, self._labels, Decimal(rate))

    def _draw(self, step: int) -> Ids:
        members = self._groups.members(step % self._count)
        chosen: Ids = members[self._coins.heads(step, members.size)]
        return chosen


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
        self._stream = DrawStream(secret, (*self._labels, "subset"))
        self.independent_assignment = False

    def _draw(self, step: int) -> Ids:
        from antiphase._kernels import random_subset

        members = self._slots.members(step % self._groups)
        chosen: Ids = members[np.sort(random_subset(self._stream.draws(step, self._size), members.size))]
        return chosen
