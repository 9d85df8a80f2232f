"""The far tail of the normals, where pairs in the smallest cell of u get extra words.

Such a pair comes once in 2^53 draws or less, so sources here are rigged: their words put chosen pairs, or many, there.
"""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase._accounting import gaussian as gaussian_module
from antiphase._kernels import gaussian
from antiphase._noise import engine, tail
from antiphase._noise.leaves import LARGEST, Leaf
from antiphase._noise.normals import TILE, TILE_BYTES, Normals
from antiphase._noise.source import BLOCK, Aes, Simulation, Source, source_maker
from antiphase.strategies import Toeplitz
from tests.noise.streams import stream

PAIRS = TILE // 2
DTYPES = [np.float32, np.float64]
OLD_END_64 = math.sqrt(2 * 53 * math.log(2))


class Crafted(Source):
    """One tile of given words, and given extra bits for each of its pairs."""

    def __init__(self, words, extra):
        self._words, self._extra = words, extra

    def words(self, leaf, row, block, out):
        if block < tail.FIRST_BLOCK:
            out[:] = self._words.view(np.uint8)
        else:
            pair = (block - tail.FIRST_BLOCK) // 16
            out[:] = np.frombuffer(self._extra[pair].to_bytes(256, "little"), np.uint8)


def tile(dtype, angles=None, cell=0):
    """The words of a tile whose pairs are all in one cell of u, at angles in [-pi/4, pi/4)."""
    turns = np.zeros(PAIRS) if angles is None else np.asarray(angles) / (math.pi / 4)
    if dtype == np.float32:
        words = np.zeros((3, PAIRS), np.int32)
        words[1], words[2] = 2 * cell, 2 * np.floor(turns * 2**30).astype(np.int64)
        return words.reshape(-1)
    words = np.zeros((2, PAIRS), np.uint64)
    words[0], words[1] = cell << 11, (np.floor(turns * 2.0**51).astype(np.int64) + 2**51).astype(np.uint64) << 12
    return words.reshape(-1)


def drawn(dtype, words, extra):
    out = np.empty(TILE, dtype)
    Normals(Crafted(words, extra), np.dtype(dtype)).fill(0, 0, 0, out)
    return out


def tail_probability(dtype, t):
    """P(|z| > t) of the draws, counted: for each angle of a quadrature rule, how many of the 2^2048 extra bits do it.

    With x = t tan(angle) it is 2/pi times the integral of P(r cos(angle) > t) dx t / (t^2 + x^2) over x > 0.
    """
    nodes, weights = np.polynomial.legendre.leggauss(PAIRS)
    x, weights = 4 * (nodes + 1), 4 * weights  # angles below pi/4; what is left out is 1e-15 of it
    words = tile(dtype, np.arctan(x / t))

    def beyond(extra):
        return np.abs(drawn(dtype, words, extra)[:PAIRS].astype(float)) > t

    scale = mpmath.mpf(2) ** (2048 + tail.BITS[np.dtype(dtype).name])
    about = [int(scale * mpmath.exp(-(t**2 + y**2) / 2)) for y in x]  # searched around, to one part in 10^15
    low, high = [9 * n // 10 for n in about], [min(11 * n // 10, 2**2048) for n in about]
    assert beyond(low).all()
    assert not beyond([min(n, 2**2048 - 1) for n in high])[np.array(high) < 2**2048].any()
    for _ in range(50):
        middle = [(a + b) // 2 for a, b in zip(low, high, strict=True)]
        far = beyond(middle)
        low = [m if yes else a for a, m, yes in zip(low, middle, far, strict=True)]
        high = [b if yes else m for b, m, yes in zip(high, middle, far, strict=True)]
    mass = [n / scale for n in low]
    return 2 / mpmath.pi * sum(m * w * t / (t**2 + y**2) for m, w, y in zip(mass, weights, x, strict=True))


@pytest.mark.parametrize(("dtype", "t", "tolerance"), [
    (np.float32, 9.36, 1e-5),
    (np.float32, 16.0, 3e-5),
    (np.float32, 50.0, 2e-4),
    (np.float64, 8.58, 1e-10),
    (np.float64, 16.0, 1e-10),
    (np.float64, 50.0, 1e-10),
])  # fmt: skip
def test_the_tail_has_the_mass_of_a_normal(dtype, t, tolerance):
    """To the rounding of z, which moves the mass by t^2 parts in 2^24 or 2^53."""
    wanted, too_small = (mpmath.erfc(x / mpmath.sqrt(2)) for x in (t, 1.01 * t))
    found = tail_probability(dtype, t)
    assert abs(found / wanted - 1) < tolerance
    assert abs(too_small / wanted - 1) > 0.5  # what noise that is 1 % too small would have


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_normals_of_a_pair_have_the_radius_of_its_extra_bits(dtype):
    """Powers of two in both words, every sign and swap: r^2 = -2 ln u and the angle as without extra words."""
    extra = [0, 1, 2**2047, 2**2048 - 1] + [2 ** (73 * i) - 1 for i in range(1, 29)]
    for bits in range(4):
        words = tile(dtype, np.linspace(-0.78, 0.78, PAIRS))
        if dtype == np.float32:
            words[PAIRS : 2 * PAIRS] |= np.int32(bits & 1)
            words[2 * PAIRS :] |= np.int32(bits >> 1)
        else:
            words[:PAIRS] |= np.uint64(bits | 1 << 10)  # the bits between are not used
        before = np.empty(TILE, dtype)
        kernel = gaussian.normals_32 if dtype == np.float32 else gaussian.normals_64
        assert kernel(words, before)
        out = drawn(dtype, words, extra)
        b = tail.BITS[np.dtype(dtype).name]
        radius = [
            float(mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(2 * X + 1) / mpmath.mpf(2) ** (b + 2049)))) for X in extra
        ]
        old = math.sqrt(2 * (b + (dtype == np.float32)) * math.log(2))
        scale = np.tile(np.array(radius) / old, 2)
        assert np.abs(out / (before * scale) - 1).max() < 4 * np.finfo(dtype).eps
        assert abs(max(radius) / tail.end_of_tail(np.dtype(dtype).name) - 1) < 1e-15


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_cells_keep_their_bits(dtype):
    kernel = gaussian.normals_32 if dtype == np.float32 else gaussian.normals_64
    for cell in (1, 2, 3, 1000):
        words, out = tile(dtype, cell=cell), np.empty(TILE, dtype)
        assert not kernel(words, out)
        assert drawn(dtype, words, [7] * PAIRS).tobytes() == out.tobytes()
    upper = tile(dtype)
    upper[:PAIRS] = ~upper[:PAIRS]  # u near 1
    assert not kernel(upper, np.empty(TILE, dtype))


FROZEN = {
    np.float32: "886d3e4088d40ec1db6c0bc1",
    np.float64: "62d4819055bf1dc0231c5fb6189b11c040e1a2fbd0ce13c0",
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tail_of_a_fixed_key_is_frozen(dtype):
    out = np.empty(3 * TILE, dtype)
    Normals(Rigged(Aes([bytes(32)]), dtype, 1), np.dtype(dtype)).fill(0, 5, 0, out)
    assert out[[TILE, TILE + PAIRS, 3 * TILE - 1]].tobytes().hex() == FROZEN[dtype]


class Rigged(Source):
    """Another source, with one in `every` pairs moved into the smallest cell, by its address alone."""

    def __init__(self, inner, dtype, every, seen=None):
        self._inner, self._every, self._seen = inner, every, seen
        self._blocks = TILE_BYTES[np.dtype(dtype).name] // BLOCK
        self._single = dtype == np.float32

    def words(self, leaf, row, block, out):
        self._inner.words(leaf, row, block, out)
        if self._seen is not None:
            self._seen.append((leaf, row, block, len(out) // BLOCK))
        if block >= tail.FIRST_BLOCK:
            return
        words = out.view(np.int32 if self._single else np.uint64).reshape(-1, 3 if self._single else 2, PAIRS)
        pairs = (block // self._blocks + np.arange(len(words)))[:, None] * PAIRS + np.arange(PAIRS)
        chosen = (pairs + 11 * row) % self._every == 0
        if self._single:
            words[:, 0][chosen] = 0
            words[:, 1][chosen] &= 1
        else:
            words[:, 0][chosen] &= np.uint64(2047)


@pytest.mark.parametrize("maker", [Aes, Simulation])
@pytest.mark.parametrize("dtype", DTYPES)
@given(start=st.integers(0, 3000), size=st.integers(0, 500), cut=st.integers(0, 500), row=st.integers(0, 2**40))
@settings(max_examples=15, deadline=None)
def test_any_stretch_of_the_tail_is_a_slice_of_the_whole(maker, dtype, start, size, cut, row):
    normals = Normals(Rigged(maker([b"k" * 32]), dtype, 7), np.dtype(dtype))
    whole, pieces = np.empty(start + size, dtype), np.empty(size, dtype)
    normals.fill(0, row, 0, whole)
    cut = min(cut, size)
    normals.fill(0, row, start, pieces[:cut])
    normals.fill_rows(0, row, start + cut, max(size - cut, 1), pieces[cut:].reshape(1, -1))
    assert pieces.tobytes() == whole[start:].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_threads_and_replays_do_not_change_the_tail(monkeypatch, dtype):
    def rigged(name, keys):
        return lambda: Rigged(source_maker(name, keys)(), dtype, 50)

    monkeypatch.setattr(engine, "source_maker", rigged)
    strategy, shape, options = Toeplitz([1.0, 0.5], 3), (300, 211), {"dtype": dtype}
    whole = stream(strategy, {"w": Leaf(shape)}, threads=1, **options)
    first = [whole.next()[0].copy() for _ in range(3)]
    assert max(np.abs(array).max() for array in first) > 8.6
    threaded = stream(strategy, {"w": Leaf(shape)}, threads=2, lookahead=2, **options)
    halves = [
        stream(strategy, {"w": Leaf(shape, (rows, columns))}, **options)
        for rows in ((0, 130), (130, 300)) for columns in ((0, 77), (77, 211))
    ]  # fmt: skip
    for step, expected in enumerate(first):
        assert threaded.next()[0].tobytes() == expected.tobytes()
        (a, b), (c, d) = ([half.next()[0] for half in pair] for pair in (halves[:2], halves[2:]))
        assert np.block([[a, b], [c, d]]).tobytes() == expected.tobytes()
        later = stream(strategy, {"w": Leaf(shape)}, start_step=step, **options)
        assert later.next()[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_extra_words_are_used_for_nothing_else(dtype):
    """Every pair of a few rows of two leaves asks for extra words: all blocks asked for are different ones."""
    seen = []
    normals = Normals(Rigged(Aes([b"k" * 32, b"m" * 32]), dtype, 1, seen), np.dtype(dtype))
    for leaf in range(2):
        for row in (0, 1, 2**40):
            normals.fill(leaf, row, 0, np.empty(10 * TILE, dtype))
    blocks = [(leaf, row, block + i) for leaf, row, block, count in seen for i in range(count)]
    assert len(blocks) == 6 * 10 * (TILE_BYTES[np.dtype(dtype).name] // BLOCK + 16 * PAIRS)
    assert len(set(blocks)) == len(blocks)


def test_extra_words_stay_apart_in_the_largest_leaf():
    """The blocks of the last tile end below those of the tail, which end below 2^64, where the row begins."""
    tiles = LARGEST // TILE
    assert tiles * max(TILE_BYTES.values()) // BLOCK <= tail.FIRST_BLOCK
    assert tail.extra_block(tiles * PAIRS - 1) + 16 <= 2**64


@pytest.mark.parametrize("maker", [Aes, Simulation])
def test_extra_words_of_neighbouring_pairs_and_rows_differ(maker):
    source, seen = maker([b"k" * 32]), []
    for row in range(4):
        for pair in range(100):
            words = np.empty(256, np.uint8)
            source.words(0, row, tail.extra_block(pair), words)
            seen.append(words.view(np.uint64))
    assert len(np.unique(np.concatenate(seen))) == 4 * 100 * 32


def shifted_out(end, shift):
    """P(|x + shift| > end) for a standard normal pair x: what leaves the disc that the pairs of a kernel fill."""
    with mpmath.workdps(40):
        r, s = mpmath.mpf(end), mpmath.mpf(shift)

        def density(x):
            return x * mpmath.exp(-((x - s) ** 2) / 2) * mpmath.besseli(0, x * s) * mpmath.exp(-x * s)

        return mpmath.quad(density, [r, r + 1, r + 4, r + 20])


@pytest.mark.parametrize(("delta", "epsilon"), [(1e-12, 10.6), (1e-15, 3.5)])
def test_the_old_ends_broke_small_deltas_and_the_new_ones_do_not(delta, epsilon):
    """One coordinate shifted by the sensitivity: float64 pairs that ended at 8.57 left the support too often."""
    shift = gaussian_module.shift(epsilon, delta)
    assert shifted_out(OLD_END_64, shift) > delta
    assert shifted_out(OLD_END_64, gaussian_module.shift(0.97 * epsilon, delta)) < delta  # this is where it began
    assert shifted_out(tail.end_of_tail("float64"), shift) < 1e-250


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_missing_mass_counts_the_last_cell_for_every_pair(dtype):
    mass = mpmath.mpf(2) ** -(tail.BITS[dtype] + 2048)
    for draws in (1, 64, 10**12 + 1, 2**60 * 10**6 + 1):
        assert 1 <= mpmath.exp(tail.log_missing_mass(draws, dtype)) / (draws * mass) < 1 + 1e-9


def test_the_stream_still_moves_on_by_whole_tiles():
    """A pair with extra words takes nothing from its neighbours: they are what they are without it."""
    plain, rigged = (np.empty(4 * TILE, np.float32) for _ in range(2))
    Normals(Aes([bytes(32)]), np.dtype(np.float32)).fill(0, 3, 0, plain)
    Normals(Rigged(Aes([bytes(32)]), np.float32, 37), np.dtype(np.float32)).fill(0, 3, 0, rigged)
    changed = np.flatnonzero(plain != rigged)
    chosen = np.array([q for q in range(4 * PAIRS) if (q + 11 * 3) % 37 == 0])
    first = chosen // PAIRS * TILE + chosen % PAIRS
    assert changed.tolist() == sorted([*first, *(first + PAIRS)])
