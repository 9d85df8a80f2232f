"""Shuffled epochs: a fresh order of all examples in every epoch."""

from __future__ import annotations

from functools import lru_cache
from typing import final

import numpy as np

from antiphase._participation import ShuffledEpochs
from antiphase._samplers.base import Sampler
from antiphase._samplers.stream import CHUNK, Ids, Stream
from antiphase._secret import Secret

EPOCHS_KEPT = 2  # the current one and, for prefetching, its neighbour


@final
class ShuffledEpochsSampler(Sampler):
    """Every epoch cuts a new uniform order of all examples into steps_per_epoch batches.

    **Guarantee**: each example once an epoch; orders uniform and independent over epochs; batch sizes
    differ by at most one. Zero-out and replace; not add-or-remove, since an example more changes the whole
    order. The first batch of an epoch orders all examples, the others are slices.
    """

    def __init__(self, participation: ShuffledEpochs, examples: int, steps: int, secret: Secret) -> None:
        self._length = participation.steps_per_epoch
        super().__init__(participation, examples, steps, secret, self._length)
        self._stream = Stream(secret, (*self._labels, "order"))
        self._order = lru_cache(maxsize=EPOCHS_KEPT)(self._shuffle)
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
