"""Plain sampling in Gram space."""

import math
import tracemalloc

import joblib
import numpy as np
import pytest

from antiphase import BallsInBins
from antiphase._errors import AntiphaseError, Refused
from antiphase._kernels.bins import bins_log_means
from antiphase._montecarlo import MonteCarlo, bins_gram, estimate, verify
from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase._montecarlo.plain_sampling import bernstein_failure, plain_means
from antiphase._montecarlo.samples import draws, randomness
from antiphase.strategies import Banded, Identity, Toeplitz
from tests.catalog import random_banded
from tests.montecarlo.oracle import integrated_delta, loss, mean_weight, modes, sampled_losses


def test_the_reference_loss():
    """Two bins, four steps, noise 1, coefficients (1, 0.5), y = (1, 0.5, 1, 0.5)."""
    strategy, y = Toeplitz([1.0, 0.5], 4), np.array([1.0, 0.5, 1.0, 0.5])
    gram, products = bins_gram(strategy, BallsInBins(2, 2)), modes(strategy, 2) @ y
    out = np.empty(1)
    bins_log_means(products[None].copy(), gram, np.empty((1, 0), dtype=np.int32), np.diag(gram) / 2.0, out)
    assert out[0] == pytest.approx(0.9052974004, abs=5e-11)
    assert loss(modes(strategy, 2), 1.0, y[None])[0] == pytest.approx(0.9052974004, abs=5e-11)


@pytest.mark.parametrize("bins", [2, 3])
def test_banded_under_one_epoch_against_integrals(bins):
    strategy = random_banded(np.random.default_rng(bins), bins, bins, signed=False)
    gram = bins_gram(strategy, BallsInBins(1, bins))
    truth = integrated_delta(gram, 1.3, 0.8, points=801 if bins == 2 else 121)
    for mean, exact in zip(plain_means(bins_pair(gram, 1.3), 0.8, 1 << 18, randomness(1), 1), truth, strict=True):
        assert abs(mean.value - exact) < 4.0 * mean.error + 2e-3 * exact
        assert mean.error < 0.01 * exact


def test_gram_space_agrees_with_all_coordinates():
    strategy = Banded(Toeplitz(Toeplitz.square_root(60, 6).coefficients, 60, True).columns())
    found = plain_means(bins_pair(bins_gram(strategy, BallsInBins(5, 12)), 3.0), 0.5, 1 << 17, randomness(2), 1)
    for mean, losses in zip(found, sampled_losses(modes(strategy, 12), 3.0, 1 << 16, 3), strict=True):
        value, error = mean_weight(losses, 0.5)
        assert abs(mean.value - value) < 4.0 * math.hypot(error, mean.error)


def test_results_do_not_depend_on_the_number_of_workers():
    pair = bins_pair(bins_gram(Toeplitz.square_root(40, 5), BallsInBins(4, 10)), 2.0)
    for estimator in (*pair.plain(), *pair.estimators(2.0)):
        one = draws(estimator, 50_000, randomness(3), workers=1)
        two = draws(estimator, 50_000, randomness(3), workers=2)
        assert np.array_equal(one.ratios, two.ratios)
        assert np.array_equal(one.shifts, two.shifts)


@pytest.mark.slow
def test_results_do_not_depend_on_the_backend():
    pair = bins_pair(bins_gram(Toeplitz.square_root(40, 5), BallsInBins(4, 10)), 2.0)
    threads = plain_means(pair, 0.5, 1 << 17, randomness(3), 2)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        processes = plain_means(pair, 0.5, 1 << 17, randomness(3), 2)
    assert threads == processes


def test_memory_does_not_grow_with_the_samples():
    pair = bins_pair(bins_gram(Toeplitz.square_root(1000, 20), BallsInBins(10, 100)), 5.0)
    plain_means(pair, 0.5, 1 << 14, randomness(4), 1)
    tracemalloc.start()
    plain_means(pair, 0.5, 1 << 16, randomness(4), 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6


def test_no_hit_is_an_error_and_never_a_delta_of_zero():
    with pytest.raises(AntiphaseError, match="delta cannot be estimated"):
        estimate(Identity(10), BallsInBins(1, 10), 1.0, 20.0, samples=1000, seed=1)


def test_an_estimate_is_called_one():
    found = estimate(Identity(10), BallsInBins(1, 10), 1.0, 0.5, samples=20_000, seed=1)
    assert found.kind == "estimate"
    assert found.value > 0.0


def test_the_constants_of_the_paper():
    """Near-exact amplification, App. E."""
    assert 6e-9 < bernstein_failure(8e-6, 1.25, 10**8) < 7.2e-9


def test_bernstein_holds_for_the_worst_weights():
    """Weights 0 or 1 have the largest variance; the mean of s of them is a binomial number over s."""
    from scipy.stats import binom

    for delta, tau, samples in ((1e-2, 1.25, 20_000), (1e-3, 2.0, 10_000), (1e-2, 4.0, 500)):
        chance = binom.cdf(math.floor(delta * samples), samples, tau * delta)
        assert chance <= bernstein_failure(delta, tau, samples)


def test_plain_verification():
    claim = {"strategy": Identity(4), "participation": BallsInBins(1, 4), "epsilon": 0.5, "delta": 0.03}
    few, many = (MonteCarlo(samples=count, workers=1, seed=1) for count in (1000, 200_000))
    bound = verify(**claim, noise_std=1.7, method="plain", tau=1.25, sampling=many)
    assert (bound.value, bound.kind) == (0.03, "confident")
    with pytest.raises(Refused, match="may spend"):
        verify(**claim, noise_std=1.7, method="plain", tau=1.25, sampling=few)
    with pytest.raises(Refused, match="not verified"):
        verify(**claim, noise_std=1.2, method="plain", tau=1.25, sampling=many)
