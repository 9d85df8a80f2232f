"""The kernels that turn random words into normals, against the formula in higher precision."""

import numpy as np
import pytest

from antiphase._kernels import correlate
from antiphase._kernels.gaussian import PAIRS, TILE, WORDS_32, WORDS_64, normals_32, normals_64
from antiphase._noise import correlator, normals

RNG_SEED = 20250101


def expected_32(words):
    """r cos(a), r sin(a) from the documented words, in float64."""
    high, low, angle = (words.reshape(-1, 3, PAIRS)[:, k].astype(np.int64) & 0xFFFFFFFF for k in range(3))
    lower = high < 2**31  # there u is small; elsewhere 1 - u is, and is computed exactly from the complement
    top = np.where(lower, high, 2**32 - 1 - high)
    rest = np.where(lower, low, 2**32 - 1 - low) >> 1
    v = top * 2.0**-32 + (rest + 0.5) * 2.0**-63
    r = np.sqrt(-2 * np.where(lower, np.log(v), np.log1p(-v)))
    signed = np.where(angle < 2**31, angle, angle - 2**32) >> 1
    x = (signed + 0.5) * (np.pi / 4 / 2.0**30)
    cosine, sine = r * np.cos(x) * np.where(low & 1, -1, 1), r * np.sin(x)
    swap = (angle & 1) == 1
    return np.stack([np.where(swap, sine, cosine), np.where(swap, cosine, sine)], axis=1).reshape(-1)


def expected_64(words):
    word, angle = (words.reshape(-1, 2, PAIRS)[:, k] for k in range(2))
    k = (word >> np.uint64(11)).astype(np.float64) + 1  # exact
    r = np.sqrt(-2 * np.where(k < 2.0**52, np.log(k * 2.0**-53), np.log1p((k - 2.0**53) * 2.0**-53)))
    x = ((angle >> np.uint64(12)).astype(np.float64) - 2.0**51 + 0.5) * (np.pi / 4 / 2.0**51)
    cosine, sine = r * np.cos(x) * np.where(word & np.uint64(1), -1, 1), r * np.sin(x)
    swap = (word & np.uint64(2)) > 0
    return np.stack([np.where(swap, sine, cosine), np.where(swap, cosine, sine)], axis=1).reshape(-1)


def random_words(dtype, count):
    limits = np.iinfo(dtype)
    return np.random.default_rng(RNG_SEED).integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)


CASES = [
    (np.int32, WORDS_32, np.float32, normals_32, expected_32, 3e-7),
    (np.uint64, WORDS_64, np.float64, normals_64, expected_64, 4e-15),
]


@pytest.mark.parametrize(("kind", "words_per_tile", "dtype", "kernel", "expected", "tolerance"), CASES)
def test_normals_follow_the_formula(kind, words_per_tile, dtype, kernel, expected, tolerance):
    words, out = random_words(kind, 4000 * words_per_tile), np.empty(4000 * TILE, dtype)
    kernel(words, out)
    wanted = expected(words)
    assert np.abs(out - wanted).max() <= tolerance * np.abs(wanted).max()
    assert np.median(np.abs(out / wanted - 1)) < tolerance


@pytest.mark.parametrize(("kind", "words_per_tile", "dtype", "kernel", "expected", "tolerance"), CASES)
def test_extreme_words_give_finite_normals_on_the_formula(kind, words_per_tile, dtype, kernel, expected, tolerance):
    """Zeros and ones everywhere, single bits set and cleared: the ends of the distribution and of the angle."""
    bits = np.array([1], kind) << np.arange(np.iinfo(kind).bits, dtype=kind)
    values = np.concatenate([np.zeros(1, kind), ~np.zeros(1, kind), bits, ~bits])
    words = np.random.default_rng(RNG_SEED).choice(values, 300 * words_per_tile)
    out = np.empty(300 * TILE, dtype)
    kernel(words, out)
    wanted = expected(words)
    assert np.isfinite(out).all()
    assert np.abs(out - wanted).max() <= 10 * tolerance * np.abs(wanted).max()


@pytest.mark.parametrize(("kind", "words_per_tile", "dtype", "kernel", "expected", "tolerance"), CASES)
def test_the_radius_reaches_as_far_as_53_bits_allow(kind, words_per_tile, dtype, kernel, expected, tolerance):
    """u = 0 in every bit: the radius, seen through cos and sin of the angle, is at least sqrt(2 53 ln 2) = 8.57."""
    out = np.empty(TILE, dtype)
    kernel(np.zeros(words_per_tile, kind), out)
    radius = np.hypot(out[:PAIRS].astype(float), out[PAIRS:].astype(float))
    assert (radius > np.sqrt(2 * 53 * np.log(2)) - 1e-6).all()
    assert (radius < 9.5).all()


def test_small_radii_are_fine_grained_in_float32():
    """u near 1: r^2 / 2 = 1 - u to relative accuracy, not in steps of the float32 spacing below 1."""
    words = np.zeros((40, 3, PAIRS), np.int32)
    words[:, 0], words[:, 1] = -1, -(np.int64(2) ** np.arange(1, 32).repeat(2)[:40])[:, None] - 1
    out = np.empty(40 * TILE, np.float32)
    normals_32(words.reshape(-1), out)
    wanted = expected_32(words.reshape(-1))
    assert 0 < np.abs(wanted).max() < 1e-4
    assert np.abs(out / wanted - 1).max() < 1e-6


def test_constants_kept_twice_agree():
    """Light modules repeat a few numbers so that they need not import Numba."""
    assert correlator.LANES == correlate.LANES
    assert normals.TILE == TILE
    assert normals.TILE_BYTES == {"float32": 4 * WORDS_32, "float64": 8 * WORDS_64}


def test_kernels_for_noise_allow_no_fast_mathematics():
    kernels = [normals_32, normals_64]
    kernels += [f for f in vars(correlate).values() if hasattr(f, "targetoptions")]
    assert len(kernels) > 8
    assert not any(kernel.targetoptions.get("fastmath") for kernel in kernels)
