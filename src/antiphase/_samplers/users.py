"""User-level sampling: a sampler draws users, and `UserIndex` maps them to their examples."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from antiphase import _check
from antiphase._errors import InvalidArgument
from antiphase._samplers.stream import DrawStream, Ids
from antiphase._secret import Secret, require_secret

_MISSING = "give those examples an id each, or leave them out: a missing id does not say whose example it is"
_NUMBERS = "iufcbmM"  # kinds of NumPy arrays that sort totally once NaN and NaT are refused
_OTHERS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)
# Type, name in errors, and what makes a plain value of a subclass; bool comes before int, and datetime before date.
_VALUES: tuple[tuple[type, str, Callable[[Any], Any]], ...] = (
    (bool, "bool", bool),
    (int, "number", int.__index__),
    (float, "number", float.__float__),
    (np.longdouble, "number", np.longdouble),
    (complex, "complex", complex),
    (str, "str", str.__str__),
    (bytes, "bytes", bytes),
    *((kind, kind.__name__, lambda owner: owner) for kind in (*_OTHERS, fractions.Fraction)),
)


class UserBatch(NamedTuple):
    """The examples of a batch of users: `indices[i]` belongs to the user at position `places[i]` of the batch."""

    indices: Ids
    places: Ids


@final
class UserIndex:
    """Maps users to their examples; users are numbered in the order in which they first appear.

    Create the participation's sampler with `examples=index.users`, and expand each of its batches.
    To protect users, clip each user's total contribution: sum over equal `places`, then clip each sum.

    **Guarantee**: users are sampled, so the participation holds for users. With `max_examples`, a user with
    more examples contributes a uniformly random subset of that size, drawn independently for every step and
    user. Examples with equal ids belong to the same user. Missing ids and ids of several types are refused,
    because one user might count as several.

    Args:
        user_of_example: the user of each example, in an array or a list: integers, strings, bytes, floats, dates,
            UUIDs, enumerations, or tuples or frozensets of these.
        max_examples: largest number of examples of one user in one batch; None for no limit.
        secret: determines which examples are taken; needed only with `max_examples`.

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
        number = _number(user_of_example)
        self._sizes: Ids = np.bincount(number).astype(np.int64)
        self._order: Ids = np.argsort(number, kind="stable").astype(np.int64)
        self._starts: Ids = np.cumsum(self._sizes) - self._sizes
        self.max_examples = max_examples
        self._stream = None if max_examples is None else self._choice(max_examples, secret)

    @property
    def users(self) -> int:
        """Number of users; pass it to a sampler as `examples`."""
        return self._sizes.size

    def expand(self, step: int, users: Ids, mask: NDArray[np.bool_]) -> UserBatch:
        """Return the examples of a sampler's batch of `users` at `step`; padding contributes none."""
        places = np.flatnonzero(mask)
        chosen = np.asarray(users)[places]
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < self.users):
            raise InvalidArgument(
                f"The batch contains users outside 0 to {self.users - 1}.",
                hint="create the sampler with examples=index.users",
            )
        sizes = self._sizes[chosen]
        taken = np.minimum(sizes, self.max_examples or self._order.size)
        inside = self._inside(int(step), sizes, int(taken.sum()))
        return UserBatch(self._order[np.repeat(self._starts[chosen], taken) + inside], np.repeat(places, taken))

    def _inside(self, step: int, sizes: Ids, total: int) -> Ids:
        """Return the positions taken from each user's examples, one user after another."""
        from antiphase._kernels import random_subsets

        if self._stream is None or self.max_examples is None:
            return random_subsets(np.empty((0, 2), np.uint64), sizes, self._order.size)
        return random_subsets(self._stream.draws(step, total), sizes, self.max_examples)

    def _choice(self, max_examples: int, secret: Secret | None) -> DrawStream:
        _check.positive_integer("UserIndex", "max_examples", max_examples, "None takes all examples of a user")
        return DrawStream(require_secret("UserIndex", secret), ("UserIndex", max_examples, "choice"))


def _number(given: Any) -> Ids:
    """Return the number of each example's user, in the order in which the users first appear."""
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        # Not through NumPy, which turns [1, 1.0, "x"] into the strings "1", "1.0" and "x".
        return _number_objects(list(given))
    if np.ma.is_masked(given):
        raise _refused("an id for every example", "a masked array", _MISSING)
    owners = np.asarray(given)
    if owners.ndim != 1:
        raise _refused("a non-empty list of users", f"shape {owners.shape}", "give one user per example")
    if owners.dtype.kind in _NUMBERS and owners.size:
        return _number_sorted(owners)
    for field in owners.dtype.names or ():
        _refuse_nan(owners[field])
    return _number_objects(owners.tolist())


def _number_sorted(owners: np.ndarray[Any, Any]) -> Ids:
    _refuse_nan(owners)
    _, first, number = np.unique(owners, return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    return rank[number]


def _refuse_nan(owners: np.ndarray[Any, Any]) -> None:
    kind = owners.dtype.kind
    missing = np.isnan(owners) if kind in "fc" else np.isnat(owners) if kind in "mM" else np.zeros(1, bool)
    if missing.any():
        raise _missing(owners[missing.argmax()].item(), int(missing.argmax()))


def _number_objects(owners: list[Any]) -> Ids:
    """Number ids by hash and equality, which unlike sorting need no order."""
    if not owners:
        raise _refused("a non-empty list of users", "no user", "give one user per example")
    types = set(map(type, owners))
    if types <= {np.datetime64} or types <= {np.timedelta64}:
        return _number_sorted(np.asarray(owners))
    if len(types) > 1 or not types <= {int, str, bytes, bool}:
        kinds: dict[str, int] = {}
        for i, owner in enumerate(owners):
            kind, owners[i] = _plain(owner, i)
            kinds.setdefault(kind, i)
        if len(kinds) > 1:
            raise _refused(
                "ids of one type",
                " and ".join(f"a {kind} for example {i}" for kind, i in kinds.items()),
                "convert all of them to one type: 1 and '1' would count as two users",
            )
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(owner, len(numbers)) for owner in owners), np.int64, len(owners))


def _plain(owner: Any, i: int) -> tuple[str, Any]:
    """Return the kind of an id and its plain value, which has the hash and the equality of Python's own types."""
    if getattr(owner, "ndim", None) == 0 and not isinstance(owner, (np.datetime64, np.timedelta64)):
        owner = owner.item()  # a NumPy scalar, or a tensor without dimensions, whose hash is its address
    if isinstance(owner, tuple):
        return "tuple", tuple(_plain(part, i)[1] for part in tuple.__iter__(owner))
    if isinstance(owner, frozenset):
        return "frozenset", frozenset(_plain(part, i)[1] for part in frozenset.__iter__(owner))
    if _is_missing(owner):
        raise _missing(owner, i)
    if isinstance(owner, enum.Enum):
        return type(owner).__name__, owner
    for kind, name, plain in _VALUES:
        if isinstance(owner, kind):
            return name, plain(owner)
    raise _refused(
        "integers, strings, bytes, floats, dates, UUIDs or tuples of these",
        f"a {type(owner).__name__} for example {i}",
        "convert each id to a string that is the same for all examples of one user",
    )


def _is_missing(owner: Any) -> bool:
    """Whether an id is None, NaN, NaT, or pandas.NA, whose comparison has no truth value."""
    try:
        return owner is None or not bool(owner == owner)  # noqa: PLR0124
    except (TypeError, ValueError, ArithmeticError):
        return True


def _missing(owner: Any, i: int) -> InvalidArgument:
    return _refused("an id for every example", f"{_check.shown(owner)} for example {i}", _MISSING)


def _refused(must: str, got: str, hint: str) -> InvalidArgument:
    message = f"The 'user_of_example' parameter of UserIndex must be {must}. Got {got} instead."
    return InvalidArgument(message, hint=hint)
