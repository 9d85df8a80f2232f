"""Samplers for participations that repeat: fixed order, shuffled epochs, balls in bins."""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np

from antiphase import _check
from antiphase._participation import BallsInBins, Deterministic, ShuffledEpochs
from antiphase._samplers.base import Sampler
from antiphase._samplers.groups import Groups, Slots
from antiphase._samplers.stream import CHUNK, DrawStream, Ids
from antiphase._secret import Secret

CACHED_EPOCHS = 2  # the current epoch and, for prefetching, the next


@final
class CycleSampler(Sampler):
    """Step t takes slot t mod period, in a fixed order that the secret determines.

    | participation | period |
    |---|---|
    | EveryStep | 1: all examples |
    | SingleParticipation | steps |
    | FixedEpochs | steps_per_epoch |
    | MinSeparation | separation, or ceil(steps / max_participations) if that is more |

    **Guarantee**: participations of an example are exactly `period` steps apart, so there are at most
    ceil(steps / period), which keeps the promise for each row of the table. Batch sizes differ by at
    most one. Supports zero-out, replace and add-or-remove adjacency, since `Slots` assigns by id only. There
    is no amplification: the order may be public.

    The sampler is not extendable if the period depends on the number of steps: for SingleParticipation, and
    for MinSeparation with max_participations.
    """

    def __init__(self, participation: Deterministic, examples: int, steps: int, secret: Secret) -> None:
        n = _check.positive_integer(type(participation).__name__, "steps", steps)
        self._period = max(participation.spacing(n), -(-n // participation.largest_count(n)))
        super().__init__(participation, examples, steps, secret, self._period)
        self._slots = Slots(secret, self._labels, self.examples, self._period)
        self.extendable = participation.max_participations is None

    def _draw(self, step: int) -> Ids:
        return self._slots.members(step % self._period).copy()


@final
class ShuffledEpochsSampler(Sampler):
    """Shuffles all examples in every epoch and splits them into steps_per_epoch batches.

    **Guarantee**: each example takes part once per epoch; orders are uniform and independent across epochs;
    batch sizes differ by at most one. Supports zero-out and replace adjacency, but not add-or-remove, since one
    more example changes the whole order. The first batch of an epoch shuffles all examples; the others are slices.
    """

    def __init__(self, participation: ShuffledEpochs, examples: int, steps: int, secret: Secret) -> None:
        self._length = participation.steps_per_epoch
        super().__init__(participation, examples, steps, secret, self._length)
        self._stream = DrawStream(secret, (*self._labels, "order"))
        self._order = lru_cache(maxsize=CACHED_EPOCHS)(self._shuffle)
        self.independent_assignment = False

    def _draw(self, step: int) -> Ids:
        epoch, position = divmod(step, self._length)
        first = position * self.examples // self._length
        last = (position + 1) * self.examples // self._length
        return np.sort(self._order(epoch)[first:last])

    def _shuffle(self, epoch: int) -> Ids:
        from antiphase._kernels import extend_shuffle

        order = np.empty(self.examples, np.int64)
        for first in range(0, self.examples, CHUNK):
            count = min(CHUNK, self.examples - first)
            extend_shuffle(order, first, self._stream.draws(epoch, count, first))
        return order


@final
class BallsInBinsSampler(Sampler):
    """Each example draws a bin once; step t takes bin t mod steps_per_epoch, in every epoch.

    **Guarantee**: bins are independent and uniform and drawn only once, as the dominating pair of balls-in-bins
    batching assumes. Supports zero-out adjacency, and add-or-remove without `max_batch`. With `max_batch` the
    bins stay the same, and the examples to drop are drawn independently in each step.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), Def. 3.1 and App. I.
    """

    def __init__(self, participation: BallsInBins, examples: int, steps: int, secret: Secret) -> None:
        self._bins = participation.steps_per_epoch
        super().__init__(participation, examples, steps, secret, self._bins)
        self._groups = Groups(secret, self._labels, self.examples, self._bins)

    def _draw(self, step: int) -> Ids:
        return self._groups.members(step % self._bins).copy()
