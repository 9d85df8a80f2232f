"""epsilon, delta and noise for balls-in-bins."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from antiphase import BallsInBins
from antiphase._errors import InvalidArgument
from antiphase._montecarlo import MonteCarlo, bins_gram, calibrate, delta, epsilon, verify
from antiphase._montecarlo.amplification import dominating_pair
from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase._montecarlo.guarantee import pair_delta, pair_epsilon
from antiphase._montecarlo.samples import randomness
from antiphase._montecarlo.verification import FRESH_FACTOR, try_claim
from antiphase.strategies import BLT, Banded, BandedInverse, Dense, Identity, Toeplitz
from tests.montecarlo.oracle import integrated_delta

COEFFICIENTS = np.array([1.0, 0.5, 0.25, 0.125]) / math.sqrt(1.328125)
CASE = Toeplitz(COEFFICIENTS, 100), BallsInBins(10, 10)
QUICK = MonteCarlo(samples=1 << 17, workers=1, seed=1)


def test_the_table_of_values_toeplitz():
    """Norm 1, 10 bins, 10 epochs, noise 2, delta = 1e-10: estimated 8.6028, certified 8.6044 at a slack of 0.5 %."""
    found = epsilon(*CASE, 2.0, 1e-10, sampling=QUICK)
    assert found.kind == "confident"
    assert 8.6028 < found.value < 8.63
    assert pair_delta(bins_pair(bins_gram(*CASE), 2.0), 8.6028, randomness(1), QUICK).value == pytest.approx(
        1e-10, rel=0.05
    )


def test_the_table_of_values_one_of_sixteen():
    for at, certified in ((1e-5, 1.7924), (1e-12, 4.4798)):
        found = epsilon(Identity(16), BallsInBins(1, 16), 1.0, at)
        assert found.kind == "upper"
        assert certified - 0.005 < found.value < certified


def published(bands: int) -> Banded:
    """Of 2000 steps, with columns of norm 1, the best for 20 epochs without amplification."""
    from antiphase import FixedEpochs
    from antiphase._optimize import optimize

    given = FixedEpochs(20, 100)
    return optimize("banded", steps=2000, participation=given, bands=bands, max_iterations=60).strategy


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "noise", "at", "estimated"), [(32, 2.071, 1e-8, 1.3559), (16, 2.829, 1e-10, 0.8106)])
def test_the_table_of_values_banded(bands, noise, at, estimated):
    """100 bins, 20 epochs; a slack of 5 % on delta is less than 0.5 % of epsilon."""
    found = epsilon(published(bands), BallsInBins(20, 100), noise * math.sqrt(20.0), at, sampling=MonteCarlo(seed=1))
    assert found.kind == "confident"
    assert 0.997 * estimated < found.value < 1.01 * estimated


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_delta_of_two_bins_against_integrals(noise):
    gram = np.array([[1.0, 0.5], [0.5, 0.8]])
    for at in (0.5, 2.0):
        truth = max(integrated_delta(gram, noise, at, points=801))
        found = pair_delta(bins_pair(gram, noise), at, randomness(3), QUICK)
        assert truth < found.value < 1.06 * truth


def test_epsilon_is_monotone_in_delta_down_to_1e_12():
    values = [epsilon(*CASE, 2.0, 10.0**-k, sampling=QUICK).value for k in (3, 6, 9, 12)]
    assert (np.diff(values) > 0.5).all()  # nothing goes flat where samples run out


def test_delta_falls_with_epsilon_and_with_noise():
    by_epsilon = [delta(*CASE, 2.0, e, sampling=QUICK).value for e in (1.0, 6.0, 12.0)]
    by_noise = [delta(*CASE, s, 4.0, sampling=QUICK).value for s in (1.5, 3.0)]
    assert (np.diff(by_epsilon) < 0.0).all()
    assert (np.diff(by_noise) < 0.0).all()
    assert by_epsilon[-1] < 1e-15


@pytest.mark.parametrize("at", [1e-3, pytest.param(1e-9, marks=pytest.mark.slow)])
def test_calibration_meets_its_budget_and_is_not_wasteful(at):
    noise, bound = calibrate(*CASE, 3.0, at, sampling=QUICK)
    assert 2.97 < bound.value <= 3.0
    assert bound.kind == "confident"
    exact = pair_delta(bins_pair(bins_gram(*CASE), noise), 3.0, randomness(9), QUICK).value
    assert 0.8 * at < exact < 1.01 * at


def test_calibration_of_independent_noise_needs_no_samples():
    noise, bound = calibrate(Identity(64), BallsInBins(4, 16), 1.0, 1e-8)
    assert bound.kind == "upper"
    at, below = (delta(Identity(64), BallsInBins(4, 16), factor * noise, 1.0).value for factor in (1.0, 0.998))
    assert at <= 1e-8 < below


def test_amplification_shows():
    noise = calibrate(*CASE, 1.0, 1e-5, sampling=QUICK)[0]
    unamplified = bins_pair(bins_gram(*CASE), noise)._unamplified(1.0)
    assert unamplified > 1e-3


@pytest.mark.parametrize(
    "strategy",
    [
        Dense(np.tril(np.ones((12, 12))) / 3.0),
        Dense([[1.0, 0.0], [-1.0, 1.0]]),
        BLT([0.9, 0.5], [0.3, 0.2], 12),
        BandedInverse([1.0, -0.5, 0.3], 12),
        Toeplitz([1.0, -0.6], 12, column_normalized=True),
    ],
    ids=lambda s: type(s).__name__,
)
def test_every_kind_of_strategy(strategy):
    participation = BallsInBins(-(-strategy.steps // 4), 4)
    found = epsilon(strategy, participation, 3.0, 1e-4, sampling=QUICK)
    again = delta(strategy, participation, 3.0, found.value, sampling=replace(QUICK, seed=2))
    assert again.value <= 1.01e-4
    assert found.kind in ("confident", "upper")


def test_one_bin_is_the_gaussian_mechanism():
    found = epsilon(Toeplitz([1.0, 0.5], 3), BallsInBins(3, 1), 2.0, 1e-6)
    rows = np.tril(Toeplitz([1.0, 0.5], 3).encoder()).sum(axis=1)
    pair = bins_pair(np.array([[float(rows @ rows)]]), 2.0)
    assert found.kind == "upper"
    assert pair._unamplified(found.value) == pytest.approx(1e-6, rel=0.01)


def test_epsilon_zero_where_noise_is_plenty():
    assert epsilon(*CASE, 1e4, 0.1, sampling=QUICK).value == 0.0


@pytest.mark.parametrize("adjust", [0.5, pytest.param(20.0, marks=pytest.mark.slow)])
def test_extreme_noise(adjust):
    pair = bins_pair(bins_gram(*CASE), adjust)
    found = pair_epsilon(pair, 1e-6, randomness(1), QUICK)
    assert pair_delta(pair, found.value, randomness(2), QUICK).value <= 1.02e-6


def test_same_seed_same_answer():
    first, second = (delta(*CASE, 2.0, 4.0, sampling=MonteCarlo(workers=w, seed=5)) for w in (1, 2))
    assert first == second


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "bands", "noise"),
    [(0.5, 16, 2.829), (1.0, 32, 2.071), (2.0, 64, 1.455), (4.0, 64, 0.802), (8.0, 64, 0.470)],
)
def test_near_exact_figure_28_balls_in_bins(target, bands, noise):
    """CIFAR-10: 2000 steps, 20 epochs, delta = 1e-5; the noise of the paper is for sensitivity 1."""
    strategy, participation = published(bands), BallsInBins(20, 100)
    at, below = (
        delta(strategy, participation, f * noise * math.sqrt(20.0), target, sampling=MonteCarlo(seed=1))
        for f in (1.0, 0.95)
    )
    assert at.value <= 1e-5
    assert below.value > 5e-6
    assert (
        verify(strategy, participation, noise * math.sqrt(20.0), target, 1e-5, sampling=MonteCarlo(seed=1)).value
        == 1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "bands", "noise"),
    [(0.5, 2, 1.018), (1.0, 4, 0.778), (2.0, 8, 0.606), (4.0, 16, 0.481), (8.0, 32, 0.388)],
)
def test_near_exact_figure_28_poisson(target, bands, noise):
    """The row beside it, accounted without samples; its noise is printed to three decimals."""
    from antiphase import CyclicPoisson
    from antiphase._accounting import Mechanism
    from antiphase._accounting import delta as accounted_delta

    strategy = Toeplitz(Toeplitz.square_root(2000, bands).coefficients, 2000, column_normalized=True)
    sampling = CyclicPoisson(bands, bands / 100)
    for shift, low, high in ((0.0005, 0.0, 1e-5), (-0.05 * noise, 5e-6, 1.0)):
        found = accounted_delta(Mechanism(strategy, sampling, (noise + shift) * math.sqrt(20.0)), target).value
        assert low < found <= high


@pytest.mark.parametrize("noise", [1e-200, 1e-150, 1e150, 1e300])
def test_noise_whose_square_is_outside_floating_point_is_refused_by_name(noise):
    with pytest.raises(InvalidArgument, match=r"'noise_std' parameter .* \[1e-140, 1e\+140\]"):
        delta(Toeplitz([1.0, 0.5], 4), BallsInBins(2, 2), noise, 1.0)


def test_a_verification_with_fresh_entropy_draws_more_samples_than_a_seeded_certificate():
    """Its limit is closer to the estimate, so that it rarely refuses, by chance, what was certified before."""
    strategy, participation = BLT([0.9], [0.2], 180), BallsInBins(3, 60)
    noise, bound = calibrate(strategy, participation, 2.0, 1e-4, sampling=MonteCarlo(seed=1, slack=0.2))
    pair, claim = dominating_pair(strategy, participation, noise), (bound.value, 1e-4, 1, randomness(5), MonteCarlo())
    few, many = try_claim(pair, *claim), try_claim(pair, *claim, more=FRESH_FACTOR)
    assert few.bound is not None
    assert many.bound is not None
    assert many.limit / many.estimate - 1 < 0.7 * (few.limit / few.estimate - 1)
    verified = [
        verify(strategy, participation, noise, *claim[:2], sampling=MonteCarlo(seed=seed)) for seed in (3, None)
    ]
    samples = [int(re.search(r"([\d,]+) and", bound.method)[1].replace(",", "")) for bound in verified]
    assert samples[1] > 2 * samples[0]
