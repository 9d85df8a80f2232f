"""Groups or bins drawn once, each example on its own."""

from __future__ import annotations

from functools import cached_property
from typing import final

from antiphase._samplers.stream import Ids, Labels, Stream
from antiphase._secret import Secret


@final
class Groups:
    """The group of example i is uniform, from draw i of the stream.

    **Guarantee**: a function of (secret, example id) alone, uniform up to 2^-128 a group, independent over
    examples.

    Args:
        secret, labels: as for `Stream`.
        examples: number of examples.
        count: number of groups.
    """

    def __init__(self, secret: Secret, labels: Labels, examples: int, count: int) -> None:
        self._stream = Stream(secret, (*labels, "groups"))
        self._examples = examples
        self._count = count

    def members(self, number: int) -> Ids:
        """The ids in group `number`, ascending (read-only: it is kept)."""
        order, starts = self._by_group
        return order[starts[number] : starts[number + 1]]

    @cached_property
    def _by_group(self) -> tuple[Ids, Ids]:
        from antiphase._kernels import group_by_key, uniform_integers

        of_example = self._stream.decide(uniform_integers, self._count, 0, self._examples)
        order, starts = group_by_key(of_example, self._count)
        order.setflags(write=False)
        return order, starts
