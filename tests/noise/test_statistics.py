"""The noise has the distribution the accounting assumes. Every check is shown to fail for a small mistake.

Streams are deterministic, so these tests always give the same answer; bounds are five standard deviations of what
true Gaussian noise would give.
"""

import numpy as np
import pytest
from scipy import stats

from antiphase.strategies import BLT, BandedInverse, Dense, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.noise.streams import flat, stream, take

ENTRIES = 400_000
SIGMA = 0.8
STEPS = 6
FAMILIES = {
    "identity": Identity(STEPS),
    "blt": BLT([0.95, 0.4], [0.3, 0.2], STEPS),
    "toeplitz": Toeplitz([1.0, 0.6, 0.3], STEPS),
    "toeplitz-normalized": Toeplitz([1.0, 0.6, 0.3], STEPS, column_normalized=True),
    "dense": Dense(np.tril(np.random.default_rng(1).random((STEPS, STEPS))) + np.eye(STEPS)),
    "banded-inverse": BandedInverse.square_root(3, STEPS),
    "tree": Tree(STEPS),
    "tree-full": Tree(STEPS, decoder="full"),
    "fourier": Fourier(STEPS),
    "stamped": Stamped(Toeplitz([1.0, 0.5], 3), 2),
}


def worst_deviation(samples, covariance):
    """Of the sample covariance over the steps (mean known to be 0), in its own standard deviations.

    An entry of it has variance (S_ii S_jj + S_ij^2) / entries.
    """
    found = samples @ samples.T / samples.shape[1]
    variance = np.diag(covariance)
    spread = np.sqrt((np.outer(variance, variance) + covariance**2) / samples.shape[1])
    return np.abs((found - covariance) / spread).max()


@pytest.fixture(scope="module", params=FAMILIES)
def drawn(request):
    strategy = FAMILIES[request.param]
    samples = take(stream(strategy, [(ENTRIES,)], SIGMA)).astype(np.float64)
    noising = strategy.noising()
    return request.param, samples, SIGMA**2 * noising @ noising.T


def test_covariance_over_the_steps_is_that_of_the_mechanism(drawn):
    _, samples, covariance = drawn
    assert worst_deviation(samples, covariance) < 5


def test_noise_one_percent_too_small_is_noticed(drawn):
    _, samples, covariance = drawn
    assert worst_deviation(samples / 1.01, covariance) > 5
    assert worst_deviation(samples * 1.01, covariance) > 5


def test_a_lag_of_one_or_a_wrong_sign_is_noticed(drawn):
    name, samples, covariance = drawn
    if name == "identity":
        late = samples[1:] + 0.1 * samples[:-1]  # independent steps have no lag to get wrong: correlate them a little
        assert worst_deviation(late, covariance[1:, 1:]) > 5
        return
    assert worst_deviation(np.roll(samples, 1, axis=0), covariance) > 5
    signs = np.where(np.arange(STEPS) % 2, -1.0, 1.0)[:, None]
    assert worst_deviation(signs * samples, covariance) > 5


@pytest.mark.parametrize("source", ["aes", "simulation"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_are_standard_normal(dtype, source):
    check_normal(flat(stream(Identity(1), [(2_000_000,)], dtype=dtype, source=source).next()).astype(np.float64))


def check_normal(z):
    """Moments, quantiles and tails, each within five standard deviations."""
    count = len(z)
    for power, mean, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs((z**power).mean() - mean) < 5 * np.sqrt(variance / count)
    observed, _ = np.histogram(stats.norm.cdf(z), bins=1000, range=(0, 1))
    chi_square = ((observed - count / 1000) ** 2).sum() / (count / 1000)
    assert stats.chi2.sf(chi_square, 999) > 3e-7
    for limit in (2.0, 3.0, 4.0, 5.0, 5.5):
        for side in (1, -1):
            expected = count * stats.norm.sf(limit)
            assert stats.poisson.cdf((side * z > limit).sum(), expected) > 3e-7
            assert stats.poisson.sf((side * z > limit).sum() - 1, expected) > 3e-7


def test_the_check_of_normality_notices_small_mistakes():
    z = np.random.default_rng(2).normal(size=2_000_000)
    check_normal(z)
    for wrong in (1.01 * z, z + 0.005, np.clip(z, -4, 4), np.abs(z), np.where(np.abs(z) > 4, 1.5 * z, z)):
        with pytest.raises(AssertionError):
            check_normal(wrong)


@pytest.mark.slow
def test_a_hundred_million_draws_are_standard_normal():
    made = stream(Identity(25), [(4_000_000,)])
    tails = dict.fromkeys((3.0, 4.0, 5.0, 5.5, 6.0), 0)
    moments, count = np.zeros(4), 0
    histogram = np.zeros(10_000)
    for _ in range(25):
        z = flat(made.next()).astype(np.float64)
        count += len(z)
        moments += [(z**power).sum() for power in (1, 2, 3, 4)]
        histogram += np.histogram(stats.norm.cdf(z), bins=10_000, range=(0, 1))[0]
        for limit in tails:
            tails[limit] += int((np.abs(z) > limit).sum())
    assert count == 10**8
    for found, mean, variance in zip(moments / count, (0, 1, 0, 3), (1, 2, 15, 96), strict=True):
        assert abs(found - mean) < 5 * np.sqrt(variance / count)
    chi_square = ((histogram - count / 10_000) ** 2).sum() / (count / 10_000)
    assert stats.chi2.sf(chi_square, 9999) > 3e-7
    for limit, found in tails.items():
        expected = 2 * count * stats.norm.sf(limit)
        assert stats.poisson.cdf(found, expected) > 3e-7
        assert stats.poisson.sf(found - 1, expected) > 3e-7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_coordinates_and_rows_are_independent(dtype):
    """Products at the distances where a flaw would show: neighbours, partners of a pair, tiles, rows, leaves."""
    made = stream(Identity(3), [(1 << 19,), (1 << 19,)], dtype=dtype)
    (first, other), (second, _) = made.white(0), made.white(1)
    first, other, second = (x.astype(np.float64) for x in (first, other, second))
    pairs = [(first[:-d], first[d:]) for d in (1, 2, 8, 16, 31, 32, 33, 64, 128, 512, 32768)]
    pairs += [(first, second), (first, other), (first[:-1], second[1:])]
    tiles = first.reshape(-1, 2, 32)
    pairs += [(tiles[:, 0].reshape(-1), tiles[:, 1].reshape(-1))]  # the two of one pair, which share a radius
    for a, b in pairs:
        bound = 5 / np.sqrt(len(a))
        assert abs((a * b).mean()) < bound
        assert abs(((a**2 - 1) * (b**2 - 1)).mean()) < 2 * bound  # each factor has variance 2
        assert abs((a * (b**2 - 1)).mean()) < np.sqrt(2) * bound
