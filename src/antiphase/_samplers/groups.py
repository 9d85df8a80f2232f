"""Random assignment of examples to groups: balanced (`Slots`) or independent (`Groups`)."""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from antiphase._samplers.stream import CHUNK, DrawStream, Ids, Labels
from antiphase._secret import Secret


@final
class Slots:
    """A balanced random assignment of example ids to slots 0, ..., period - 1.

    Ids are split into blocks of `period` consecutive ids. The ids of a block go to different slots, in a uniformly
    random order that is drawn for each block. The sizes of the slots therefore differ by at most one, and adding ids at
    the end does not move any other id to a different slot.

    **Guarantee**: the slot of id i is uniform and depends only on (secret, i). Ids from different blocks are assigned
    independently; ids from the same block are in different slots.

    Args:
        secret: secret from which the random order of each block is derived.
        labels: labels of the random numbers, as for `DrawStream`. Different labels give independent assignments.
        examples: number of examples.
        period: number of slots.
    """

    def __init__(self, secret: Secret, labels: Labels, examples: int, period: int) -> None:
        self._stream = DrawStream(secret, (*labels, "slots"))
        self._examples = examples
        self._period = period

    def members(self, slot: int) -> Ids:
        """Return the ids in `slot`, sorted; the array is cached and read-only."""
        row = self._table[slot]
        return row if row[-1] < self._examples else row[:-1]  # only the last block can be incomplete

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        from antiphase._kernels import shuffle_blocks

        blocks = -(-self._examples // self._period)
        table = np.empty((self._period, blocks), np.int64)
        together = max(1, CHUNK // self._period)
        for first in range(0, blocks, together):
            ids = min(together, blocks - first) * self._period
            shuffle_blocks(table, first, self._stream.draws(0, ids, first * self._period))
        table.setflags(write=False)
        return table


@final
class Groups:
    """An independent random assignment of examples to groups: draw i of a `DrawStream` decides the group of example i.

    **Guarantee**: the group of an example depends only on (secret, example id). The groups of different examples are
    independent. Each group is equally probable, with an error of at most 2^-128.

    Args:
        secret: secret from which the groups are derived.
        labels: labels of the random numbers, as for `DrawStream`. Different labels give independent assignments.
        examples: number of examples.
        count: number of groups.
    """

    def __init__(self, secret: Secret, labels: Labels, examples: int, count: int) -> None:
        self._stream = DrawStream(secret, (*labels, "groups"))
        self._examples = examples
        self._count = count

    def members(self, number: int) -> Ids:
        """Return the ids in group `number`, sorted; the array is cached and read-only."""
        order, starts = self._by_group
        return order[starts[number] : starts[number + 1]]

    @cached_property
    def _by_group(self) -> tuple[Ids, Ids]:
        from antiphase._kernels import group_by_key, uniform_integers

        of_example = self._stream.decide(uniform_integers, self._count, 0, self._examples)
        order, starts = group_by_key(of_example, self._count)
        order.setflags(write=False)
        return order, starts
