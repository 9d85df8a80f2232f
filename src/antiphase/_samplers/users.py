"""User-level sampling: the sampler draws users, and `UserIndex` maps them to their examples."""

from __future__ import annotations

from typing import NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase import _check
from antiphase._check import invalid
from antiphase._errors import InvalidArgument
from antiphase._samplers.stream import DrawStream, Ids
from antiphase._secret import Secret, require_secret


class UserBatch(NamedTuple):
    """The examples of a batch of users: `indices[i]` belongs to the user at position `places[i]` of the batch."""

    indices: Ids
    places: Ids


@final
class UserIndex:
    """Maps users to their examples; users are numbered in the order in which they first appear.

    Make the participation's sampler with `examples=index.users`, and expand each of its batches.
    To protect users, clip each user's total contribution: sum over equal `places`, then clip each sum.

    **Guarantee**: the user is what is sampled, so the participation holds for users. With `max_examples`
    a larger user gives a uniformly random subset of that size, fresh at every step and independent of
    the other users.

    Args:
        user_of_example: the user of each example: integers, strings, anything that NumPy can sort.
        max_examples: largest number of examples of one user in one batch; None takes all.
        secret: determines which examples are taken; only needed with `max_examples`.

    >>> index = UserIndex(["ann", "bob", "ann"])
    >>> index.users
    2
    >>> batch = index.expand(0, np.array([0, 1]), np.array([True, True]))
    >>> batch.indices.tolist(), batch.places.tolist()
    ([0, 2, 1], [0, 0, 1])
    """

    def __init__(
        self, user_of_example: ArrayLike, max_examples: int | None = None, secret: Secret | None = None
    ) -> None:
        owners = np.asarray(user_of_example)
        if owners.ndim != 1 or owners.size == 0:
            raise invalid(
                "UserIndex", "user_of_example", "a non-empty list of users", owners.shape, "give one user per example"
            )
        _, first, number = np.unique(owners, return_index=True, return_inverse=True)
        rank = np.empty(first.size, np.int64)
        rank[np.argsort(first)] = np.arange(first.size)
        self._sizes: Ids = np.bincount(rank[number]).astype(np.int64)
        self._order: Ids = np.argsort(rank[number], kind="stable").astype(np.int64)
        self._starts: Ids = np.cumsum(self._sizes) - self._sizes
        self.max_examples = max_examples
        self._stream = None if max_examples is None else self._choice(max_examples, secret)

    @property
    def users(self) -> int:
        """Number of users, the `examples` of a sampler."""
        return self._sizes.size

    def expand(self, step: int, users: Ids, mask: NDArray[np.bool_]) -> UserBatch:
        """Return the examples of a sampler's batch of `users` at `step`; padding has none."""
        places = np.flatnonzero(mask)
        chosen = np.asarray(users)[places]
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < self.users):
            raise InvalidArgument(
                f"The batch contains users outside 0 to {self.users - 1}.",
                hint="make the sampler with examples=index.users",
            )
        sizes = self._sizes[chosen]
        taken = np.minimum(sizes, self.max_examples or self._order.size)
        inside = self._inside(int(step), sizes, int(taken.sum()))
        return UserBatch(self._order[np.repeat(self._starts[chosen], taken) + inside], np.repeat(places, taken))

    def _inside(self, step: int, sizes: Ids, total: int) -> Ids:
        """Return the positions taken among each user's own examples, one user after another."""
        from antiphase._kernels import random_subsets

        if self._stream is None or self.max_examples is None:
            return random_subsets(np.empty((0, 2), np.uint64), sizes, self._order.size)
        return random_subsets(self._stream.draws(step, total), sizes, self.max_examples)

    def _choice(self, max_examples: int, secret: Secret | None) -> DrawStream:
        _check.positive_integer("UserIndex", "max_examples", max_examples, "None takes all examples of a user")
        return DrawStream(require_secret("UserIndex", secret), ("UserIndex", max_examples, "choice"))
