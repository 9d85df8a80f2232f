"""Orthogonal modes by convolution."""

import math

import numpy as np
import pytest

from antiphase import BallsInBins
from antiphase._montecarlo import bins_gram, delta
from antiphase._montecarlo.allocation import Allocation, allocation, allocation_delta
from antiphase._montecarlo.balls_in_bins import bins_pair
from antiphase._montecarlo.cores import Cores
from antiphase._montecarlo.estimator import log_weights
from antiphase._montecarlo.gaussian import log_divergence
from antiphase._montecarlo.pilot import Effort
from antiphase._montecarlo.samples import draws, randomness
from antiphase.strategies import Identity, Toeplitz
from tests.montecarlo.oracle import integrated_delta


@pytest.mark.parametrize("square", [1e-3, 0.1, 1.0, 9.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_one_bin_is_the_gaussian_mechanism(square, epsilon):
    exact = float(np.exp(log_divergence(epsilon, square)))
    for found in allocation_delta(Allocation((square,), (1,)), epsilon):
        assert exact <= found <= exact * (1.0 + 1e-3) + 1e-12


@pytest.mark.parametrize("squares", [(1.0, 1.0), (0.3, 2.0), (0.5, 1.0, 1.5), (1.0, 0.0, 1.0)])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_against_integrals(squares, epsilon):
    truth = integrated_delta(np.diag(squares), 1.0, epsilon, points=141 if np.count_nonzero(squares) == 3 else 801)
    found = allocation_delta(allocation(np.diag(squares), 1.0), epsilon)
    for value, exact in zip(found, truth, strict=True):
        assert value == pytest.approx(exact, rel=3e-3)


@pytest.mark.parametrize(("epsilon", "reference"), [(1.7886, 1e-5), (4.4768, 1e-12)])
def test_published_numbers(epsilon, reference):
    """One of 16 bins, noise 1."""
    assert max(allocation_delta(Allocation((1.0,), (16,)), epsilon)) == pytest.approx(reference, rel=2e-3)


@pytest.mark.parametrize("bins", [3, 50])
def test_a_finer_grid_is_never_larger(bins):
    modes = Allocation((0.4, 0.5), (bins // 2, bins - bins // 2))
    for side in (0, 1):
        values = [allocation_delta(modes, 0.8, points)[side] for points in (128, 512, 2048)]
        assert values[0] >= values[1] >= values[2] > 0.0
        assert values[1] < values[2] * 1.2


def test_certified_sampling_agrees_and_would_notice_one_percent_of_noise():
    """60 bins at delta = 1e-9, far beyond plain sampling."""
    gram, noise, epsilon = np.eye(60), 0.9, 2.9
    exact = max(allocation_delta(allocation(gram, noise), epsilon))
    pair = bins_pair(gram, noise)
    effort = Effort(1 << 20, 20.0, randomness(1), workers=1)
    estimator = pair.pilots(epsilon, effort)[0].estimator
    assert isinstance(estimator, Cores)
    weights = np.exp(log_weights(estimator, draws(estimator, 1 << 16, randomness(2), workers=1), epsilon))
    error = weights.std() / 256.0
    assert 1e-10 < exact < 1e-8
    assert abs(weights.mean() - exact) < 4.0 * error < 0.08 * exact
    assert max(allocation_delta(allocation(gram, 0.99 * noise), epsilon)) > 1.15 * exact


def test_identity_at_many_epochs_is_one_allocation_with_less_noise():
    """E epochs of the same bins repeat each contribution E times: the same pair at noise_std / sqrt(E)."""
    many = delta(Identity(48), BallsInBins(6, 8), 2.0, 1.0)
    once = delta(Identity(8), BallsInBins(1, 8), 2.0 / math.sqrt(6.0), 1.0)
    assert many.value == pytest.approx(once.value, rel=1e-9)
    assert many.kind == "upper"


def test_a_truncated_last_epoch_has_modes_of_two_sizes():
    gram = bins_gram(Identity(11), BallsInBins(3, 4))
    assert allocation(gram, 1.0) == Allocation((2.0, 3.0), (1, 3))
    truncated, whole = (delta(Identity(n), BallsInBins(3, 4), 2.0, 1.0).value for n in (11, 12))
    assert 0.5 * whole < truncated < whole


def test_only_orthogonal_modes_are_an_allocation():
    assert allocation(bins_gram(Toeplitz([1.0, 1e-9], 4), BallsInBins(2, 2)), 1.0) is None


def test_nothing_is_ever_zero():
    assert all(value > 0.0 for value in allocation_delta(Allocation((1.5,), (10_000,)), 1.0, 256))
