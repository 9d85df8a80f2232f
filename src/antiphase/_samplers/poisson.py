"""Poisson sampling, from all examples or from one group after another."""

from __future__ import annotations

from decimal import Decimal
from typing import final

from antiphase._participation import CyclicPoisson, Poisson
from antiphase._samplers.base import Sampler
from antiphase._samplers.bernoulli import Bernoulli
from antiphase._samplers.groups import Groups
from antiphase._samplers.stream import Ids
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
