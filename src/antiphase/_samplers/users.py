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
from antiphase._traceback import without_locals

_ONE_TYPE = "convert all ids to one type: 1 and '1' would count as two users"
_MISSING = "give every example a user id, or leave out the examples without one"
_NUMBERS = "iufcbmM"  # NumPy dtype kinds whose values have a total order, once NaN and NaT are excluded
_OTHERS = (datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal)
# Each entry has a type, its name in errors, and a function that converts an instance of a subclass to the type itself.
# The order matters, because bool is a subclass of int, and datetime is a subclass of date.
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
    """Examples of a batch of users. Example `indices[i]` belongs to the user at position `places[i]` of the batch."""

    indices: Ids
    places: Ids


@final
class UserIndex:
    """Maps users to their examples. Users are numbered in the order in which they first appear.

    Create the participation's sampler with `examples=index.users`, and pass each of its batches to `expand`. To protect
    users, clip the total contribution of each user: add up the gradients with equal `places`, then clip each sum.

    **Guarantee**: the sampler draws users, so the participation holds for users. With `max_examples`, a user with more
    examples contributes a uniformly random subset of that size, drawn independently for every step and user. Examples
    with equal ids belong to the same user. Missing ids and ids of several types raise an error, because one user might
    then count as several. The guarantee compares two data sets that differ only in the data of one user. In both, every
    user must have the same user number. The guarantee does not cover what the order of the users reveals.

    Args:
        user_of_example: the user of each example, in an array or a list: integers, strings, bytes, floats, dates,
            UUIDs, enumerations, or tuples or frozensets of these.
        max_examples: largest number of examples of one user in one batch; None for no limit.
        secret: determines which examples of a user are drawn; needed only with `max_examples`.

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

    @without_locals
    def expand(self, step: int, users: Ids, mask: NDArray[np.bool_]) -> UserBatch:
        """Return the examples of all users in a sampler's batch, or in a part of it, such as one rank's part.

        The examples chosen for a user do not depend on which part is expanded.

        Args:
            step: step of the batch.
            users: indices of the batch, which are user numbers.
            mask: mask of the batch; entries with mask False are padding and have no examples.
        """
        at = _check_batch(step, users, mask)
        places = np.flatnonzero(mask)
        chosen = np.asarray(users)[places]
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < self.users):
            raise InvalidArgument(
                f"The batch contains user numbers outside 0 to {self.users - 1}.",
                hint="create the sampler with examples=index.users",
            )
        if np.unique(chosen).size < chosen.size:
            raise InvalidArgument(
                "The batch contains a user twice. That user would contribute twice.",
                hint="pass indices and mask of a batch as the sampler returned them",
            )
        sizes = self._sizes[chosen]
        taken = np.minimum(sizes, self.max_examples or self._order.size)
        starts = np.repeat(self._starts[chosen], taken)
        return UserBatch(self._order[starts + self._inside(at, sizes, taken, starts)], np.repeat(places, taken))

    def _inside(self, step: int, sizes: Ids, taken: Ids, starts: Ids) -> Ids:
        """Return the chosen positions within each user's list of examples, concatenated over users.

        The draws of a user are numbered by the positions of the user's examples in `_order`, which lists all examples
        sorted by user. The draws therefore do not depend on which other users are expanded in the same call, and no two
        users share a draw.
        """
        from antiphase._kernels import random_subsets

        if self._stream is None or self.max_examples is None:
            return random_subsets(np.empty((0, 2), np.uint64), sizes, self._order.size)
        ends = np.cumsum(taken)
        first = np.arange(starts.size) - np.repeat(ends - taken, taken)
        return random_subsets(self._stream.draws_at(step, starts + first), sizes, self.max_examples)

    def _choice(self, max_examples: int, secret: Secret | None) -> DrawStream:
        _check.positive_integer("UserIndex", "max_examples", max_examples, "use None to take all examples of a user")
        return DrawStream(require_secret("UserIndex", secret), ("UserIndex", max_examples, "choice"))


def _check_batch(step: Any, users: Any, mask: Any) -> int:
    """Return the step as an int. Raise `InvalidArgument` unless the arguments of `expand` form a batch."""
    if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < 1 << 53:
        raise _check.invalid("UserIndex.expand", "step", "an integer >= 0", step, "steps are counted from 0")
    numbers, used = np.asarray(users), np.asarray(mask)
    hint = "pass indices and mask of a batch as the sampler returned them"
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        got = f"shape {numbers.shape} of {numbers.dtype}"
        raise _check.invalid("UserIndex.expand", "users", "a list of integers", got, hint)
    if used.shape != numbers.shape or (used.size and used.dtype.kind != "b"):
        got = f"shape {used.shape} of {used.dtype}"
        raise _check.invalid("UserIndex.expand", "mask", "one True or False for each user", got, hint)
    return int(step)


def _number(given: Any) -> Ids:
    """Return the user number of each example. Users are numbered in the order in which they first appear."""
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        # Do not convert to a NumPy array, which would turn [1, 1.0, "x"] into the strings "1", "1.0" and "x".
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
    if kind == "f":
        # Floats this large, including infinity, cannot represent every integer, so two ids may have been rounded to the
        # same float.
        rounded = np.abs(owners) >= 2.0 ** (np.finfo(owners.dtype).nmant + 1)
        if rounded.any():
            raise _imprecise(owners[rounded.argmax()].item(), int(rounded.argmax()))


def _number_objects(owners: list[Any]) -> Ids:
    """Return the user number of each id, using hash and equality, because ids may have no order."""
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
                " and ".join(f"a {kind} as id of example {i}" for kind, i in kinds.items()),
                _ONE_TYPE,
            )
    numbers: dict[Any, int] = {}
    return np.fromiter((numbers.setdefault(owner, len(numbers)) for owner in owners), np.int64, len(owners))


def _plain(owner: Any, i: int) -> tuple[str, Any]:
    """Return the name of an id's type, and the id converted to a built-in type with the usual hash and equality."""
    if np.ma.is_masked(owner):  # check before item(), which would return 0.0 for the masked value
        raise _missing(owner, i)
    if isinstance(owner, np.floating):
        _refuse_nan(np.asarray([owner]))
    if getattr(owner, "ndim", None) == 0 and not isinstance(owner, (np.datetime64, np.timedelta64)):
        owner = owner.item()  # a NumPy scalar, or a zero-dimensional tensor, whose hash would be its address
    if isinstance(owner, float) and not abs(owner) < 2.0**53 and not _is_missing(owner):
        raise _imprecise(owner, i)
    if isinstance(owner, tuple):
        parts = [_plain(part, i) for part in tuple.__iter__(owner)]
        return f"tuple ({', '.join(kind for kind, _ in parts)})", tuple(value for _, value in parts)
    if isinstance(owner, frozenset):
        parts = [_plain(part, i) for part in frozenset.__iter__(owner)]
        kinds = sorted({kind for kind, _ in parts})
        if len(kinds) > 1:
            raise _refused("ids of one type", f"a frozenset of {' and '.join(kinds)} as id of example {i}", _ONE_TYPE)
        return f"frozenset of {kinds[0]}" if kinds else "empty frozenset", frozenset(value for _, value in parts)
    if _is_missing(owner):
        raise _missing(owner, i)
    if isinstance(owner, enum.Enum):
        return type(owner).__name__, owner
    if isinstance(owner, datetime.datetime | datetime.time):  # times with and without a time zone are never equal
        zone = "without" if owner.utcoffset() is None else "with"
        return f"{type(owner).__name__} {zone} a time zone", owner
    for kind, name, plain in _VALUES:
        if isinstance(owner, kind):
            return name, plain(owner)
    raise _refused(
        "integers, strings, bytes, floats, dates, UUIDs or tuples of these",
        f"a {type(owner).__name__} as id of example {i}",
        "convert each id to a string that is the same for all examples of one user",
    )


def _is_missing(owner: Any) -> bool:
    """Return True if an id is None, NaN, NaT or pandas.NA. Note that bool(pandas.NA == pandas.NA) raises an error."""
    try:
        return owner is None or not bool(owner == owner)  # noqa: PLR0124
    except (TypeError, ValueError, ArithmeticError):
        return True


def _missing(owner: Any, i: int) -> InvalidArgument:
    return _refused("an id for every example", f"{_check.shown(owner)} as id of example {i}", _MISSING)


def _imprecise(owner: Any, i: int) -> InvalidArgument:
    hint = "read the ids as integers or strings; a column with missing values often becomes floats"
    return _refused(
        "ids that differ between users", f"{_check.shown(owner)}, a rounded float, as id of example {i}", hint
    )


def _refused(must: str, got: str, hint: str) -> InvalidArgument:
    message = f"The 'user_of_example' parameter of UserIndex must be {must}. Got {got} instead."
    return InvalidArgument(message, hint=hint)
