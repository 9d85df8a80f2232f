"""The base class of samplers, the batches that they return, and a function that splits a batch among workers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphase import _check
from antiphase._check import invalid
from antiphase._participation import Participation
from antiphase._record import tag_of
from antiphase._samplers.stream import DrawStream, Ids
from antiphase._secret import Secret, require_secret
from antiphase._traceback import without_locals


class Batch(NamedTuple):
    """Indices of the examples of one step, with a mask. Entries with mask False are padding and contribute nothing."""

    indices: Ids
    mask: NDArray[np.bool_]


class Sampler(ABC):
    """Draws the batch of any step, as a pure function of (participation, examples, steps, secret, step).

    The indices of a batch are sorted and distinct. An empty batch is an empty array. If the participation has a
    `max_batch`, the arrays of a batch have exactly that length: smaller batches are padded (index 0, mask False), and
    larger batches are truncated to a uniformly random subset.

    **Guarantee**: every example takes part in a set of steps that `participation.worst_case` allows. The examples that
    `max_batch` drops depend only on the secret and the step, never on the data. Under zero-out adjacency, truncation
    therefore does not change a guarantee that uses no amplification by sampling. A guarantee that uses amplification
    includes the cost of truncation.

    Attributes:
        participation: the participation that the batches follow.
        examples: number of examples.
        steps: number of steps.
        independent_assignment: True if the steps of each example depend only on (secret, example id). Adding an example
            then does not change the steps of any other example, as add-or-remove adjacency requires. It is False with
            `max_batch`, because one example can displace another.
        extendable: True if a sampler with more steps (or epochs) begins with the same batches.
    """

    participation: Participation
    examples: int
    steps: int
    independent_assignment: bool
    extendable: bool

    def __init__(
        self, participation: Participation, examples: int, steps: int, secret: Secret, *parameters: int | str
    ) -> None:
        self._name = type(participation).__name__
        owner = f"{self._name}.sampler"
        require_secret(owner, secret)
        self.examples = _check.positive_integer(owner, "examples", examples, "there must be at least one example")
        self.steps = _check.positive_integer(owner, "steps", steps)
        participation.worst_case.largest_count(self.steps)  # raises if the participation covers fewer steps
        self.participation = participation
        self._largest = participation.max_batch
        self._labels = (tag_of(participation), *parameters)
        self._dropping = DrawStream(secret, (*self._labels, "dropping"))
        self.independent_assignment = self._largest is None
        self.extendable = True

    @without_locals
    def batch(self, step: int) -> Batch:
        """Return the batch of `step`, an integer in [0, steps)."""
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < self.steps:
            raise invalid(
                f"{self._name}.sampler.batch",
                "step",
                f"an integer in [0, {self.steps})",
                step,
                "steps are counted from 0; for a longer run, create a sampler with more steps",
            )
        indices = self._draw(int(step))
        if self._largest is None:
            return Batch(indices, np.ones(indices.size, np.bool_))
        return self._fit(indices, int(step), self._largest)

    @abstractmethod
    def _draw(self, step: int) -> Ids:
        """Return the sorted indices of the batch before truncation, as a new array."""

    def _fit(self, indices: Ids, step: int, size: int) -> Batch:
        if indices.size > size:
            from antiphase._kernels import random_subset

            indices = indices[np.sort(random_subset(self._dropping.draws(step, size), indices.size))]
        padding = size - indices.size
        mask = np.arange(size) < indices.size
        return Batch(np.pad(indices, (0, padding)), mask)

    def __repr__(self) -> str:
        if not hasattr(self, "extendable"):  # a debugger may print the object after __init__ raised an error
            return f"<{type(self).__name__}, not initialised>"
        return f"<sampler of {self.participation!r}: {self.examples} examples, {self.steps} steps>"


def shard(indices: NDArray[np.int64], mask: NDArray[np.bool_], rank: int, world: int) -> Batch:
    """Return the part of a batch for worker `rank`: entries rank, rank + world, rank + 2 * world, and so on.

    **Guarantee**: the parts of all ranks together contain each entry of the batch exactly once, and their sizes differ
    by at most one. Every worker draws the whole batch from the same secret, so no communication is needed.

    Args:
        indices: indices of the batch.
        mask: mask of the batch.
        rank: number of the worker, in [0, world).
        world: number of workers.

    >>> shard(np.arange(5), np.ones(5, bool), rank=1, world=2).indices.tolist()
    [1, 3]
    """
    _check.positive_integer("shard", "world", world)
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < world:
        raise invalid("shard", "rank", f"an integer in [0, {world})", rank, "ranks are counted from 0")
    return Batch(indices[rank::world], mask[rank::world])
