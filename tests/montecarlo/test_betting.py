"""Confidence limits fail no more often than they say, and are not idle."""

import math

import numpy as np
import pytest

from antiphase._montecarlo._allocation import Allocation, allocation_delta
from antiphase._montecarlo._betting import LARGEST_STAKE, best_stake, log_wealth, upper_limit
from antiphase._montecarlo._bins import bins_pair
from antiphase._montecarlo._certify import Run, run_certified
from antiphase._montecarlo._pilot import Effort, run_pilot
from antiphase._montecarlo._samples import randomness

LAWS = {
    "rare and large": lambda rng, size: (rng.random(size) < 0.002).astype(float),
    "uniform": lambda rng, size: rng.random(size),
    "small with large ones": lambda rng, size: np.where(rng.random(size) < 0.01, rng.random(size), 0.01),
}
MEANS = {"rare and large": 0.002, "uniform": 0.5, "small with large ones": 0.01 * 0.5 + 0.99 * 0.01}


def most_failures(repeats: int, beta: float) -> float:
    """Four standard deviations above the expected number."""
    return repeats * beta + 4.0 * math.sqrt(repeats * beta * (1.0 - beta))


@pytest.mark.parametrize("law", LAWS)
def test_the_stated_failure_rate_holds_over_a_thousand_repeats(law):
    rng, beta, size = np.random.default_rng(1), 0.05, 500
    stake = best_stake(LAWS[law](rng, 4000), size, math.log(1.0 / beta))[0]
    limits = np.array([upper_limit(LAWS[law](rng, size), stake, math.log(1.0 / beta)) for _ in range(1000)])
    assert (limits < MEANS[law]).sum() <= most_failures(1000, beta)
    assert np.median(limits) < 8.0 * MEANS[law]


def test_an_adversarial_stake_costs_width_not_validity():
    rng, beta = np.random.default_rng(2), 0.05
    for stake in (1e-3, 0.1, LARGEST_STAKE):
        limits = np.array([upper_limit(LAWS["uniform"](rng, 200), stake, math.log(1.0 / beta)) for _ in range(400)])
        assert (limits < 0.5).sum() <= most_failures(400, beta)


def test_the_limit_is_where_the_wealth_is_reached():
    shares = np.random.default_rng(3).random(1000) ** 8
    limit = upper_limit(shares, 0.5, 12.0)
    assert log_wealth(shares, 0.5, limit) == pytest.approx(12.0, rel=1e-6)
    assert log_wealth(shares, 0.5, limit) >= 12.0
    assert upper_limit(np.ones(10), 0.5, 12.0) == 1.0
    assert upper_limit(np.zeros(3), LARGEST_STAKE, 12.0) == 1.0


def test_no_hits_give_a_limit_above_zero():
    assert upper_limit(np.zeros(10_000), LARGEST_STAKE, 10.0) == pytest.approx(10.0 / 10_000, rel=1e-2)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_confidence_limits_cover_a_known_delta(direction):
    """200 seeded repeats of the whole certified run, at beta = 0.05, on modes whose delta convolution gives."""
    epsilon, side, beta = 2.0, ["remove", "add"].index(direction), 0.05
    truth = allocation_delta(Allocation((1.0,), (4,)), epsilon)[side]
    estimator = bins_pair(np.eye(4), 1.0).estimators(epsilon)[side]
    effort = Effort(500, math.log(1.0 / beta), randomness(1), workers=1)
    pilot = run_pilot(estimator, epsilon, 4000, effort)
    stake = pilot.expected(500, effort.log_inverse)[0]
    run = Run(pilot, 500, stake, 0.0)
    limits = np.array([run_certified(run, effort, randomness(1000 + i)).value for i in range(200)])
    assert (limits < truth * (1.0 - 1e-4)).sum() <= most_failures(200, beta)
    assert np.median(limits) < 1.5 * truth
