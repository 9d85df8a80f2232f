"""The integer kernels against plain Python integers, and the draws against AES itself."""

from bisect import bisect_right

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import strategies as st

from antiphase._kernels import sampling
from antiphase._samplers import bernoulli, epochs, groups
from antiphase._samplers import stream as stream_module
from antiphase._samplers.stream import DrawStream
from antiphase._secret import Secret
from tests.samplers.cases import FIXED, incidence, search

WORDS = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]))
DRAWS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=20)
UNIT = 2**128


def as_draws(rows):
    return np.array(rows, dtype=np.uint64).reshape(-1, 2)


def numbers(draws):
    return [int(high) << 64 | int(low) for high, low in draws]


def floyd(draws, population):
    """A subset as large as the draws, in Python integers and sets."""
    chosen = set()
    for i, draw in enumerate(draws):
        j = population - len(draws) + i
        t = draw * (j + 1) // UNIT
        chosen.add(j if t in chosen else t)
    return chosen


@search(DRAWS, st.one_of(st.integers(1, 100), st.integers(1, 2**63 - 1)))
def test_uniform_is_the_scaled_draw(rows, bound):
    expected = [draw * bound // UNIT for draw in numbers(as_draws(rows))]
    assert sampling.uniform_integers(as_draws(rows), bound).tolist() == expected


@search(DRAWS, st.lists(st.integers(0, UNIT - 1), max_size=30))
def test_invert_counts_the_thresholds_at_or_below(rows, thresholds):
    thresholds = sorted([*thresholds, *numbers(as_draws(rows))[:2]])  # ties too
    table = as_draws([(t >> 64, t % 2**64) for t in thresholds])
    expected = [bisect_right(thresholds, draw) for draw in numbers(as_draws(rows))]
    assert sampling.invert_cdf(as_draws(rows), table).tolist() == expected


@search(DRAWS, st.integers(0, 50))
def test_subset_is_floyds(rows, more):
    population = len(rows) + more
    expected = floyd(numbers(as_draws(rows)), population)
    assert len(expected) == len(rows)
    assert sorted(sampling.random_subset(as_draws(rows), population).tolist()) == sorted(expected)


@search(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(6, 40), st.integers(0, 9), st.data())
def test_scatter_is_floyds_in_each_block(counts, block, first, data):
    draws = DrawStream(Secret.insecure(data.draw(st.integers(0, 9))), ("test",)).draws(0, sum(counts))
    found = sampling.scatter_in_blocks(np.array(counts), draws, block, first).tolist()
    expected, used = [], 0
    for k, count in enumerate(counts):
        chosen = floyd(numbers(draws[used : used + count]), block)
        expected += [(first + k) * block + position for position in sorted(chosen)]
        used += count
    assert found == expected


@search(st.lists(st.integers(0, 5), max_size=40))
def test_group_collects_the_positions_of_each_key(keys):
    order, starts = sampling.group_by_key(np.array(keys, np.int64), 6)
    for g in range(6):
        assert order[starts[g] : starts[g + 1]].tolist() == [i for i, key in enumerate(keys) if key == g]


@search(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 5))
def test_subsets_keep_small_users_whole_and_cut_large_ones(sizes, limit):
    draws = DrawStream(Secret.insecure(1), ("test",)).draws(0, sum(min(size, limit) for size in sizes))
    expected = []
    for size in sizes:
        row = numbers(draws[len(expected) : len(expected) + limit])
        expected += range(size) if size <= limit else sorted(floyd(row, size))
    assert sampling.random_subsets(draws, np.array(sizes, np.int64), limit).tolist() == expected


# the stream


def test_a_draw_is_aes_of_its_address_and_number():
    stream = DrawStream(Secret.insecure(3), ("Poisson", 1, "counts"))
    key = Secret.insecure(3).derive("sampler", 1, "Poisson", 1, "counts")
    block_cipher = Cipher(AES(key), ECB()).encryptor()
    draws = stream.draws(7, 4, first=5)
    for i in range(4):
        block = block_cipher.update((7).to_bytes(8, "big") + (5 + i).to_bytes(8, "big"))
        assert draws[i].tolist() == [int.from_bytes(block[:8], "little"), int.from_bytes(block[8:], "little")]


def test_any_part_of_a_stream_can_be_read_alone():
    stream = DrawStream(Secret.insecure(3), ("a",))
    whole = stream.draws(2, 100)
    np.testing.assert_array_equal(stream.draws(2, 10, 50), whole[50:60])
    assert not np.array_equal(stream.draws(3, 100), whole)
    assert not np.array_equal(DrawStream(Secret.insecure(3), ("b",)).draws(2, 100), whole)
    assert stream.draws(0, 0).shape == (0, 2)


def test_the_size_of_the_pieces_changes_nothing(monkeypatch):
    def everything():
        return [incidence(q.sampler(1000, 12, Secret.insecure(5))).tobytes() for q in FIXED]

    expected = everything()
    for module in (stream_module, epochs, groups):
        monkeypatch.setattr(module, "CHUNK", 7)
    monkeypatch.setattr(bernoulli, "BLOCKS_AT_ONCE", 3)
    assert everything() == expected
