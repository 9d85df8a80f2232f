"""Samplers for epochs in a fixed order, for shuffled epochs, and for balls in bins."""

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
    """Splits the examples into `period` batches, called slots, and repeats the slots.

    Step t uses slot t mod period. The secret determines the split.

    | participation | period |
    |---|---|
    | EveryStep | 1: all examples |
    | SingleParticipation | steps |
    | FixedEpochs | steps_per_epoch |
    | MinSeparation | separation, or ceil(steps / max_participations) if that is more |

    **Guarantee**: participations of an example are exactly `period` steps apart, so an example takes part at most
    ceil(steps / period) times. Every participation in the table allows such patterns. Batch sizes differ by at most
    one. Zero-out and replace adjacency are supported, because the slot of an example depends only on the secret and the
    example's id (see `Slots`). Add-or-remove is supported only if all other examples keep their ids. The accounting
    does not rely on this condition, so under add-or-remove it covers EveryStep only. The accounting does not assume
    that the slots are secret, because it uses no amplification by sampling.

    For SingleParticipation, and for MinSeparation with max_participations, the period depends on the number of steps.
    A longer run would then have different batches, so `extendable` is False.
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

    **Guarantee**: each example takes part once per epoch. The order of each epoch is uniformly random and independent
    of the orders of other epochs. Batch sizes differ by at most one. Zero-out and replace adjacency are supported, but
    not add-or-remove, because adding an example changes the whole order.

    The first batch of an epoch shuffles all examples. All other batches of the epoch are slices of the result.
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
    """Assigns each example to a random bin once. The batch of step t is bin t mod steps_per_epoch.

    **Guarantee**: each example has one bin for the whole run. The bins of all examples are uniform and independent, as
    the privacy analysis of balls-in-bins batching assumes. Supports zero-out adjacency and, without `max_batch`,
    add-or-remove. With `max_batch`, an example keeps its bin, and the examples to drop are drawn independently in each
    step.

    Reference: Choquette-Choo et al. 2025 (near-exact amplification), Def. 3.1 and App. I.
    """

    def __init__(self, participation: BallsInBins, examples: int, steps: int, secret: Secret) -> None:
        self._bins = participation.steps_per_epoch
        super().__init__(participation, examples, steps, secret, self._bins)
        self._groups = Groups(secret, self._labels, self.examples, self._bins)

    def _draw(self, step: int) -> Ids:
        return self._groups.members(step % self._bins).copy()
