"""Samplers that draw a new subset in every step: Poisson, cyclic Poisson, and batches of fixed size."""

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
    """Each example joins each step independently with probability `rate`.

    **Guarantee**: participations are independent across examples and steps, to the accuracy of `Bernoulli`. Zero-out
    and add-or-remove adjacency are supported. With `max_batch`, add-or-remove requires the accounting for truncated
    Poisson sampling. That accounting assumes that a truncated batch is a uniformly random subset of the drawn examples,
    as it is here.

    Drawing a batch takes time proportional to its size.
    """

    def __init__(self, participation: Poisson, examples: int, steps: int, secret: Secret) -> None:
        rate = float(participation.rate)
        super().__init__(participation, examples, steps, secret, rate.hex())
        self._coins = Bernoulli(secret, self._labels, Decimal(rate))

    def _draw(self, step: int) -> Ids:
        return self._coins.heads(step, self.examples)


@final
class CyclicPoissonSampler(Sampler):
    """Assigns each example to a random group once. Members of group t mod groups join step t with probability `rate`.

    **Guarantee**: the groups of all examples are uniform and independent. Each step draws a Poisson sample from one
    group. The distance between two participations of an example is a multiple of `groups`. Supports zero-out adjacency
    and, without `max_batch`, add-or-remove.

    When the first batch is drawn, all examples are assigned to groups. Each later batch takes time proportional to its
    size.

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
    """Draws a uniformly random subset of batch_size examples from group t mod groups in step t.

    **Guarantee**: draws are independent across steps. Each group has examples // groups members, or one more. A step
    therefore draws an example with probability at most batch_size / (examples // groups). The group of an example
    depends only on (secret, example id), so replacing an example does not move any other example to a different group.
    Replace adjacency is supported. Add-or-remove is not, because an added example can displace a different example from
    the batch.

    Reference: Choquette-Choo et al. 2023 (amplified banded), Alg. 2.
    """

    def __init__(self, participation: FixedSize, examples: int, steps: int, secret: Secret) -> None:
        groups, size = participation.groups, participation.batch_size
        super().__init__(participation, examples, steps, secret, groups, size)
        if size > self.examples // groups:
            raise invalid(
                "FixedSize",
                "batch_size",
                f"at most {self.examples // groups}, the size of the smallest group when {self.examples} examples are "
                f"split into {groups} groups",
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
