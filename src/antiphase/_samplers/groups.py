"""Assignment of examples to groups, balanced (`Slots`) or independent (`Groups`)."""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from antiphase._samplers.stream import CHUNK, DrawStream, Ids, Labels
from antiphase._secret import Secret


@final
class Slots:
    """A balanced assignment of ids to slots 0, ..., period - 1 in which no id depends on which others exist.

    Each run of `period` consecutive ids is spread over all slots in its own uniformly random order. So the
    sizes of the slots differ by at most one, and adding ids at the end does not move any other id.

    **Guarantee**: slot(i) is uniform and depends only on (secret, i). Ids from different runs are
    independent; ids from the same run are in different slots.

    Args:
        secret, labels: as for `DrawStream`.
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
        return row if row[-1] < self._examples else row[:-1]  # only the last run can be incomplete

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        from antiphase._kernels import shuffle_blocks

        runs = -(-self._examples // self._period)
        table = np.empty((self._period, runs), np.int64)
        together = max(1, CHUNK // self._period)
        for first in range(0, runs, together):
            ids = min(together, runs - first) * self._period
            shuffle_blocks(table, first, self._stream.draws(0, ids, first * self._period))
        table.setflags(write=False)
        return table


@final
class Groups:
    """An independent assignment of examples to groups; example i uses draw i of the stream.

    **Guarantee**: the group depends only on (secret, example id), is uniform up to 2^-128 per group, and is
    independent across examples.

    Args:
        secret, labels: as for `DrawStream`.
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
