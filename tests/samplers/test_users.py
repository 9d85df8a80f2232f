"""User-level sampling and splitting by rank."""

import datetime
import enum
import math
import uuid
from collections import Counter
from decimal import Decimal
from itertools import combinations

import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from antiphase import _participation as p
from antiphase._errors import InvalidArgument
from antiphase._samplers import Batch, UserIndex, shard
from antiphase._samplers.stream import DrawStream
from antiphase._secret import Secret
from tests.samplers.cases import search

OWNERS = st.lists(st.integers(0, 6), min_size=1, max_size=40)


def everyone(index):
    return np.arange(index.users), np.ones(index.users, bool)


@search(OWNERS)
def test_a_user_stands_for_all_its_examples(owners):
    index = UserIndex(owners)
    names = list(dict.fromkeys(owners))  # in the order of first appearance
    assert index.users == len(names)
    for number, name in enumerate(names):
        batch = index.expand(0, np.array([number]), np.array([True]))
        assert batch.indices.tolist() == [i for i, owner in enumerate(owners) if owner == name]
        assert not batch.places.any()


@search(OWNERS, st.integers(1, 4), st.integers(0, 5))
def test_a_cap_keeps_some_of_each_users_own_examples(owners, cap, step):
    index = UserIndex(owners, cap, Secret.insecure(1))
    users, mask = everyone(index)
    batch = index.expand(step, users, mask)
    all_of = UserIndex(owners).expand(step, users, mask)
    sizes = np.bincount(all_of.places)
    assert np.bincount(batch.places).tolist() == np.minimum(sizes, cap).tolist()
    whole = set(zip(all_of.indices.tolist(), all_of.places.tolist(), strict=True))
    assert set(zip(batch.indices.tolist(), batch.places.tolist(), strict=True)) <= whole
    assert len(set(batch.indices.tolist())) == batch.indices.size
    again = UserIndex(owners, cap, Secret.insecure(1)).expand(step, users, mask)
    np.testing.assert_array_equal(again.indices, batch.indices)


def test_the_choice_within_a_user_is_uniform_fresh_and_independent_of_other_users():
    index = UserIndex([0, 0, 0, 0, 1, 1, 1], 2, Secret.insecure(2))
    users, mask = everyone(index)
    drawn = Counter()
    for step in range(6000):
        batch = index.expand(step, users, mask)
        drawn[tuple(batch.indices.tolist())] += 1
    cells = [(*a, *b) for a in combinations(range(4), 2) for b in combinations(range(4, 7), 2)]
    assert set(drawn) == set(cells)
    assert stats.chisquare([drawn[cell] for cell in cells]).pvalue > 1e-6


def test_a_user_keeps_its_promise_over_all_its_examples():
    owners = np.repeat(np.arange(30), 4)
    index = UserIndex(owners, 3, Secret.insecure(3))
    sampler = p.MinSeparation(5).sampler(index.users, 12, Secret.insecure(3))
    steps = [set(owners[index.expand(t, *sampler.batch(t)).indices].tolist()) for t in range(12)]
    for near in range(1, 5):
        assert all(not steps[t] & steps[t + near] for t in range(12 - near))


def test_padding_and_empty_batches_have_no_examples():
    index = UserIndex(["ann", "bob", "ann"])
    assert index.expand(0, np.array([1, 0, 0]), np.array([True, False, False])).indices.tolist() == [1]
    empty = index.expand(0, np.empty(0, np.int64), np.empty(0, bool))
    assert empty.indices.size == empty.places.size == 0
    assert empty.indices.dtype == np.int64


def test_a_new_user_at_the_end_renumbers_nobody():
    before, after = UserIndex([9, 3, 9]), UserIndex([9, 3, 9, 1])
    for user in range(2):
        one, two = (i.expand(0, np.array([user]), np.array([True])).indices.tolist() for i in (before, after))
        assert one == two


@pytest.mark.parametrize("owners", [[], [[1, 2]], 3])
def test_bad_owners_are_refused(owners):
    with pytest.raises(InvalidArgument, match="user_of_example"):
        UserIndex(owners)


class NoTruthValue:
    """Compares as pandas.NA does."""

    __hash__ = None

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


class Elsewhere:
    """An id without equality by value."""


def column(*ids):
    made = np.empty(len(ids), object)
    made[:] = ids
    return made


NAN = float("nan")


@pytest.mark.parametrize(
    "owners",
    [
        column(2, NAN, 1, NAN, 2),
        [2, NAN, 1, NAN, 2],
        np.array([2.0, NAN, 1.0]),
        column("a", None, "a"),
        ["a", None],
        column(1, NoTruthValue()),
        column((1, NAN), (1, 2.0)),
        column(frozenset([NAN])),
        np.array(["2020-01-01", "NaT"], "datetime64[D]"),
        [np.datetime64("NaT")],
        np.array([(1, NAN)], "i4,f4"),
        np.ma.array([1, 1, 2], mask=[0, 1, 0]),
        list(np.ma.array([5, 0, 3], mask=[0, 0, 1])),
        column(5, np.ma.masked),
        [(1, np.ma.masked), (1, 0.0)],
        [Decimal("NaN")],
        [Decimal("sNaN")],
    ],
)
def test_a_missing_id_is_refused_by_name(owners):
    with pytest.raises(InvalidArgument, match=r"user_of_example.*an id for every example"):
        UserIndex(owners)


@pytest.mark.parametrize(
    "owners",
    [
        [100000000000000001, 1e17],
        [1.0, 2.0**53],
        np.array([1e17, 1e17]),
        np.array([3.0, 2.0**24], "f4"),
        [np.float32(2.0**24)],
        column(1, 1e17),
        [("a", 1e17)],
        [math.inf],
    ],
)
def test_floats_too_large_to_tell_users_apart_are_refused(owners):
    with pytest.raises(InvalidArgument, match="rounded float"):
        UserIndex(owners)


@pytest.mark.parametrize(
    "owners",
    [
        [1, 1.0, "x"],
        [1, "1"],
        [True, 1],
        column(True, 1),
        ["ann", b"ann"],
        [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)],
        [Decimal(1), 1],
        [(1,), 1],
        [("a", 1), ("a", "1")],
        [("a", (b"x",)), ("a", ("x",))],
        [("a", 1), ("a", 1, 1)],
        [frozenset([1]), frozenset(["1"])],
        [frozenset([1, "1"])],
    ],
)
def test_ids_of_several_types_are_refused(owners):
    with pytest.raises(InvalidArgument, match="ids of one type"):
        UserIndex(owners)


@pytest.mark.parametrize("owners", [[[1], [1]], [{}], [Elsewhere(), Elsewhere()], [np.zeros(2)], column(len)])
def test_ids_without_equality_by_value_are_refused(owners):
    with pytest.raises(InvalidArgument, match="user_of_example"):
        UserIndex(owners)


class Shouting(str):
    """A string that hashes and compares as it likes."""

    __slots__ = ()

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Tensor:
    """Hashes by address and compares by entry, as a tensor of no dimensions does."""

    ndim = 0

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


@pytest.mark.parametrize(
    ("owners", "users"),
    [
        ([frozenset(word) for word in ("ab", "c", "ab", "d", "ac", "ba", "c")], "abacdab"),
        ([(1, 2.0), (0, 1.0), (1.0, 2), (0, 1.0)], "abab"),
        ([1, 1.0, np.int8(1), np.float32(2), 2], "aaabb"),
        ([0.0, -0.0, 1.0], "aab"),
        (np.array([0.0, -0.0, 1.0]), "aab"),
        ([2**63, -1, 2**63, 2**63 + 1], "abac"),
        (["a", "a\0", "a", np.str_("a")], "abaa"),
        ([Shouting("a"), "b", Shouting("a")], "aba"),
        (np.array([(1, 2), (1, 3), (1, 2)], "i4,i4"), "aba"),
        (np.array([b"x", b"y", b"x"]), "aba"),
        ([uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=1)], "aba"),
        ([Colour.RED, Colour.BLUE, Colour.RED], "aba"),
        ([np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00", "ns")], "aa"),
        ([True, False, np.True_], "aba"),
        (range(3), "abc"),
        ([Tensor(3), 3, Tensor(4)], "aab"),
        ([Decimal("1.0"), Decimal("1.00")], "aa"),
    ],
)
def test_equal_ids_are_one_user_and_different_ids_are_not(owners, users):
    index = UserIndex(owners)
    batch = index.expand(0, *everyone(index))
    found = dict(zip(batch.indices.tolist(), batch.places.tolist(), strict=True))
    names = list(dict.fromkeys(users))
    assert [found[i] for i in range(len(users))] == [names.index(user) for user in users]


def test_a_cap_needs_a_secret_and_a_positive_number():
    with pytest.raises(InvalidArgument, match="secret"):
        UserIndex([1, 2], 3)
    with pytest.raises(InvalidArgument, match="max_examples"):
        UserIndex([1, 2], 0, Secret.insecure(1))


def test_a_batch_of_examples_instead_of_users_is_noticed():
    with pytest.raises(InvalidArgument, match=r"examples=index\.users"):
        UserIndex([0, 0, 1]).expand(0, np.array([2]), np.array([True]))


# splitting by rank


@search(st.integers(0, 30), st.integers(1, 7))
def test_the_parts_of_all_ranks_are_the_batch(size, world):
    sampler = p.Poisson(0.5, max_batch=30).sampler(size + 1, 1, Secret.insecure(size))
    batch = sampler.batch(0)
    parts = [shard(*batch, rank, world) for rank in range(world)]
    together = sorted((i, m) for part in parts for i, m in zip(*map(np.ndarray.tolist, part), strict=True))
    assert together == sorted(zip(*map(np.ndarray.tolist, batch), strict=True))
    sizes = [part.indices.size for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert all(isinstance(part, Batch) for part in parts)


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0), (0.0, 2), (True, 2), (0, 1.5)])
def test_bad_ranks_are_refused(rank, world):
    with pytest.raises(InvalidArgument, match=r"rank|world"):
        shard(np.arange(3), np.ones(3, bool), rank, world)


TWO = np.ones(2, bool)


@pytest.mark.parametrize(
    ("step", "users", "mask", "match"),
    [
        (0, np.array([0, 0]), TWO, "a user twice"),
        (0, np.arange(2), np.ones(1, bool), "'mask'"),
        (0, np.arange(2), None, "'mask'"),
        (0, np.arange(2), np.ones(2), "'mask'"),
        (0, np.array([True, False]), TWO, "'users'"),
        (0, np.array([0.0, 1.0]), TWO, "'users'"),
        (1.9, np.arange(2), TWO, "'step'"),
        (-1, np.arange(2), TWO, "'step'"),
        (2**70, np.arange(2), TWO, "'step'"),
        (None, np.arange(2), TWO, "'step'"),
        (True, np.arange(2), TWO, "'step'"),
    ],
)
def test_a_batch_that_no_sampler_returns_is_refused(step, users, mask, match):
    """A user who appears twice is clipped twice, so the sum has twice the sensitivity."""
    index = UserIndex([0, 0, 1], 1, Secret.insecure(1))
    with pytest.raises(InvalidArgument, match=match):
        index.expand(step, users, mask)


def test_times_with_and_without_a_zone_are_of_two_types():
    when = datetime.datetime(2020, 1, 1)
    with pytest.raises(InvalidArgument, match="ids of one type"):
        UserIndex([when, when.replace(tzinfo=datetime.UTC)])
    assert UserIndex([when, when]).users == 1


def test_parts_of_a_batch_give_every_user_the_subset_of_the_whole_batch():
    """Otherwise the ranks of a run would share draws, and one user more would change what the others contribute."""
    index = UserIndex(np.repeat(np.arange(30), 9), max_examples=3, secret=Secret.insecure(4))
    users, mask = np.random.default_rng(0).permutation(30)[:20], np.arange(20) % 5 > 0

    def chosen(step, users, mask):
        batch = index.expand(step, users, mask)
        return {int(users[i]): batch.indices[batch.places == i].tolist() for i in np.flatnonzero(mask)}

    for step in range(5):
        whole, parts = chosen(step, users, mask), {}
        for rank in range(3):
            parts.update(chosen(step, *shard(users, mask, rank, 3)))
        assert parts == whole
        assert len({tuple(np.array(one) % 9) for one in whole.values()}) > 8  # of 16 users


def test_draws_by_number_are_those_of_the_stream():
    stream = DrawStream(Secret.insecure(2), ("a", "b"))
    np.testing.assert_array_equal(stream.draws_at(7, np.array([5, 0, 3])), stream.draws(7, 6)[[5, 0, 3]])
