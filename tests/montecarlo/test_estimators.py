"""Weights: the right mean whatever the parameters, and never above their bound."""

import math
from dataclasses import replace

import numpy as np
import pytest

from antiphase._errors import AntiphaseError
from antiphase._montecarlo.balls_in_bins import best_cores, best_power, best_tilt, bins_pair
from antiphase._montecarlo.cores import Cores, log_core_bounds
from antiphase._montecarlo.estimator import Draws, Estimator, log_bound, log_weights
from antiphase._montecarlo.power import Power, log_factor
from antiphase._montecarlo.samples import draws, randomness
from antiphase._montecarlo.split import Split, split
from antiphase._montecarlo.steps import log_step_bounds
from antiphase._montecarlo.tilt import Tilt, best_weights, log_tilt_factor
from tests.montecarlo.cases import grams
from tests.montecarlo.oracle import integrated_delta, mean_weight, sampled_losses

SAMPLES = 1 << 14
NOISE = 0.6
FAR = {"orthogonal": 9.0, "correlated": 10.0, "sparse": 15.0, "pairs of equal modes": 9.0, "singular": 10.0}


def mean(estimator: Estimator, epsilon: float, seed: int) -> tuple[float, float]:
    """With its standard error; every call checks each weight against its bound."""
    found = draws(estimator, SAMPLES, randomness(seed), workers=1)
    weights = np.exp(log_weights(estimator, found, epsilon))
    assert weights.max() <= math.exp(log_bound(estimator, epsilon))
    return float(weights.mean()), float(weights.std() / math.sqrt(SAMPLES))


def cores(modes: Split, alpha: int, equal: bool = False) -> Cores:
    bounds = log_core_bounds(modes, log_step_bounds(modes, alpha), alpha)
    weights = np.where(np.isfinite(bounds), 1.0, 0.0) if equal else np.exp(bounds - bounds.max())
    return Cores(modes, alpha, weights / weights.sum(), bounds)


def removals(modes: Split) -> list[Estimator]:
    return [Power(modes, 1), Power(modes, 2), Power(modes, 4), cores(modes, 2), cores(modes, 3, True), cores(modes, 4)]


def additions(modes: Split) -> list[Estimator]:
    p = np.random.default_rng(3).dirichlet(np.ones(modes.bins))
    p[0] = 0.0
    p = p / p.sum() if modes.bins > 1 else np.ones(1)
    equal = np.full(modes.bins, 1.0 / modes.bins)
    return [Tilt(modes, 0.0, equal), Tilt(modes, 2.0, equal), Tilt(modes, 1.0, p), best_tilt(modes, 1.0)]


@pytest.mark.parametrize("name", grams())
def test_every_estimator_agrees_with_samples_of_all_coordinates(name):
    gram = grams()[name]
    values, vectors = np.linalg.eigh(gram)
    noise = math.sqrt(gram.max())  # at much less noise a high power has its weight where no sample comes
    modes = split(gram).scaled(noise)
    losses = sampled_losses(vectors * np.sqrt(np.maximum(values, 0.0)), noise, 1 << 16, 5)
    for estimators, sampled in zip((removals(modes), additions(modes)), losses, strict=True):
        epsilon = float(np.quantile(sampled, 0.99))
        truth, error = mean_weight(sampled, epsilon)
        assert 1e-4 < truth < 1e-2
        for seed, estimator in enumerate(estimators):
            found, own_error = mean(estimator, epsilon, seed)
            assert abs(found - truth) < 4.5 * math.hypot(error, own_error), estimator


@pytest.mark.parametrize("name", FAR)
def test_both_ways_to_remove_agree_far_out(name):
    modes = split(grams()[name]).scaled(NOISE)
    epsilon = FAR[name]
    first = mean(Power(modes, best_power(modes, epsilon)), epsilon, 1)
    for candidate in best_cores(modes, epsilon, 16):
        second = mean(candidate, epsilon, 2)
        assert abs(first[0] - second[0]) < 4.5 * math.hypot(first[1], second[1])
        assert first[0] < 1e-5
        assert first[1] < 0.2 * first[0]


@pytest.mark.parametrize("bins", [2, 3])
def test_against_integrals(bins):
    gram = np.array([[1.0, 0.4, 0.1], [0.4, 0.9, 0.3], [0.1, 0.3, 0.5]])[:bins, :bins]
    epsilon, modes = 1.5, split(gram).scaled(0.8)
    remove, add = integrated_delta(gram, 0.8, epsilon, points=801 if bins == 2 else 121)
    for estimators, truth in ((removals(modes), remove), (additions(modes), add)):
        for seed, estimator in enumerate(estimators):
            found, error = mean(estimator, epsilon, 10 + seed)
            assert abs(found - truth) < 4.5 * error + 2e-3 * truth


def test_a_weight_above_its_bound_raises():
    modes = split(np.eye(4))
    estimator = Power(modes, 3)
    found = estimator.draw(np.random.default_rng(1), 100)
    with pytest.raises(AntiphaseError, match="exceeds its proved bound"):
        log_weights(estimator, Draws(found.ratios + 5.0, found.shifts), 1.0)
    with pytest.raises(AntiphaseError, match="exceeds its proved bound"):
        log_weights(estimator, Draws(found.ratios * np.nan, found.shifts), 1.0)


def test_the_bound_of_the_cores_covers_every_core_size():
    modes = split(np.eye(6))
    fair = cores(modes, 4)
    starved = replace(fair, weights=fair.weights * np.array([1.0, 1e-6, 1.0, 1.0]))
    assert starved.log_factor > fair.log_factor + 10.0


def test_the_bound_is_log_convex_in_the_power():
    modes = split(grams()["sparse"]).scaled(NOISE)
    logs = [log_bound(Power(modes, alpha), 3.0) for alpha in range(1, 12)]
    assert (np.diff(logs, 2) > -1e-9).all()
    assert int(np.argmin(logs)) + 1 == best_power(modes, 3.0)


def test_powers_that_would_overflow_have_no_bound():
    modes = split(200.0 * np.eye(3))
    assert math.isfinite(log_factor(modes, 2))
    assert log_factor(modes, 6) == math.inf


def test_better_weights_for_the_shift():
    modes = split(grams()["uneven"]).scaled(0.5)
    equal = np.full(5, 0.2)
    assert log_tilt_factor(modes, 3.0, best_weights(modes, 3.0)) < log_tilt_factor(modes, 3.0, equal) - 0.1


def test_the_bound_on_the_weights_is_itself_an_upper_bound_on_delta():
    gram = grams()["sparse"][:3, :3] + 0.1 * np.eye(3)
    for epsilon in (0.5, 2.0, 4.0):
        assert (
            0.999 * max(integrated_delta(gram, 0.8, epsilon, points=101)) <= bins_pair(gram, 0.8).upper(epsilon).value
        )
