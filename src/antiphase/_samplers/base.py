"""What every sampler has: its participation, random access by step, a fixed shape if one is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from antiphase import _check
from antiphase._check import invalid
from antiphase._participation import Deterministic, Participation
from antiphase._samplers.stream import Ids, Stream
from antiphase._secret import Secret, require_secret


class Batch(NamedTuple):
    """The examples of one step. Entries whose mask is False are padding: their gradient counts as zero."""

    indices: Ids
    mask: NDArray[np.bool_]


class Sampler(ABC):
    """Gives the batch of any step: a pure function of (participation, examples, steps, secret, step).

    Indices ascend and none is repeated; an empty batch is given as an empty array. With `max_batch` the
    arrays have exactly that length: padding (index 0, mask False) fills them up, and of a larger batch a
    uniformly random subset is kept.

    **Guarantee**: the steps of every example form a pattern of `participation.worst_case`. Which examples
    are dropped by `max_batch` depends on the secret and the step alone, never on what the examples hold,
    so without amplification
    zero-out adjacency is not affected; amplified accounting charges for batches that overflow.

    Attributes:
        participation: the promise it was made from.
        examples, steps: their numbers.
        independent_assignment: whether each example's steps are a function of (secret, example id) alone,
            so that an example more moves no other: what add-or-remove adjacency needs. Never with
            `max_batch`, since there an example can push another out.
        extendable: whether the batches stay the same for a larger number of steps (or epochs).
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
        self.examples = _check.positive_integer(owner, "examples", examples, "there must be data to sample")
        self.steps = _check.positive_integer(owner, "steps", steps)
        promise = participation.worst_case
        assert isinstance(promise, Deterministic)
        promise.largest_count(self.steps)  # raises if the promise does not reach so far
        self.participation = participation
        self._largest: int | None = getattr(participation, "max_batch", None)
        self._labels = (self._name, *parameters)
        self._dropping = Stream(secret, (*self._labels, "dropping"))
        self.independent_assignment = self._largest is None
        self.extendable = True

    def batch(self, step: int) -> Batch:
        """The examples of `step`, in [0, steps)."""
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < self.steps:
            raise invalid(
                f"{self._name}.sampler.batch",
                "step",
                f"an integer in [0, {self.steps})",
                step,
                "steps count from 0; more steps need a sampler made for more",
            )
        indices = self._draw(int(step))
        if self._largest is None:
            return Batch(indices, np.ones(indices.size, np.bool_))
        return self._fit(indices, int(step), self._largest)

    @abstractmethod
    def _draw(self, step: int) -> Ids:
        """The ascending indices before truncation, in an array of the caller's own."""

    def _fit(self, indices: Ids, step: int, size: int) -> Batch:
        if indices.size > size:
            from antiphase._kernels.sampling import subset

            indices = indices[np.sort(subset(self._dropping.draws(step, size), indices.size))]
        padding = size - indices.size
        mask = np.arange(size) < indices.size
        return Batch(np.pad(indices, (0, padding)), mask)

    def __repr__(self) -> str:
        if not hasattr(self, "extendable"):  # its making was refused, and a debugger looks at it
            return f"<{type(self).__name__}, not made>"
        return f"<sampler of {self.participation!r}: {self.examples} examples, {self.steps} steps>"
