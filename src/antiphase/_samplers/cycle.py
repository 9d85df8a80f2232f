"""Deterministic participation as a cycle: example i takes part in steps slot(i), slot(i) + period, ..."""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from antiphase import _check
from antiphase._participation import EveryStep, FixedEpochs, MinSeparation, SingleParticipation
from antiphase._samplers.base import Sampler
from antiphase._samplers.stream import CHUNK, Ids, Labels, Stream
from antiphase._secret import Secret

Cyclic = EveryStep | FixedEpochs | MinSeparation | SingleParticipation


@final
class Slots:
    """A balanced assignment of ids to slots 0, ..., period - 1 in which no id depends on the others present.

    Each run of `period` consecutive ids is spread over all slots by a uniformly random order of its own, so
    the slots' sizes differ by at most one and yet id i stays where it is when ids are added at the end.

    **Guarantee**: slot(i) is a function of (secret, i) alone and uniform; ids of different runs are
    independent, those of one run are in different slots.

    Args:
        secret, labels: as for `Stream`.
        examples: number of examples.
        period: number of slots.
    """

    def __init__(self, secret: Secret, labels: Labels, examples: int, period: int) -> None:
        self._stream = Stream(secret, (*labels, "slots"))
        self._examples = examples
        self._period = period

    def members(self, slot: int) -> Ids:
        """The ids in `slot`, ascending (read-only: it is kept)."""
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
class CycleSampler(Sampler):
    """Step t processes slot t mod period, in a fixed order that the secret decides.

    | participation | period |
    |---|---|
    | EveryStep | 1: all examples |
    | SingleParticipation | steps |
    | FixedEpochs | steps_per_epoch |
    | MinSeparation | separation, or ceil(steps / max_participations) if that is more |

    **Guarantee**: participations of an example are exactly `period` steps apart, hence at most
    ceil(steps / period), which is within the promise for each row of the table. Batch sizes differ by at
    most one. Zero-out, replace, and add-or-remove, since `Slots` assigns by id alone. There is no
    amplification: the order may be known.

    A period that depends on the number of steps makes the sampler not extendable: SingleParticipation, and
    MinSeparation with max_participations.
    """

    def __init__(self, participation: Cyclic, examples: int, steps: int, secret: Secret) -> None:
        self._period = _period(participation, _check.positive_integer(type(participation).__name__, "steps", steps))
        super().__init__(participation, examples, steps, secret, self._period)
        self._slots = Slots(secret, self._labels, self.examples, self._period)
        limit = getattr(participation, "max_participations", None)
        self.extendable = not isinstance(participation, SingleParticipation) and limit is None

    def _draw(self, step: int) -> Ids:
        return self._slots.members(step % self._period).copy()


def _period(participation: Cyclic, steps: int) -> int:
    match participation:
        case EveryStep():
            return 1
        case SingleParticipation():
            return steps
        case FixedEpochs():
            return participation.steps_per_epoch
        case MinSeparation():
            limit = participation.max_participations or steps
            return max(participation.separation, -(-steps // limit))
