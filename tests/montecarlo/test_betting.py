"""Confidence limits fail no more often than they say, and are not idle."""

import math

import numpy as np
import pytest

from antiphase import PoissonMinSeparation
from antiphase._montecarlo import dominating_pair
from antiphase._montecarlo.allocation import Allocation, allocation_delta
from antiphase._montecarlo.balls_in_bins import best_cores, best_tilt, bins_pair
from antiphase._montecarlo.betting import LARGEST_STAKE, best_stake, log_wealth, upper_limit
from antiphase._montecarlo.certificate import SamplingPlan, run_certified
from antiphase._montecarlo.estimator import Estimator
from antiphase._montecarlo.min_separation import Absent, Joined
from antiphase._montecarlo.patterns import Law
from antiphase._montecarlo.pilot import Effort, run_pilot
from antiphase._montecarlo.power import Power
from antiphase._montecarlo.samples import randomness
from antiphase.strategies import Toeplitz
from tests.montecarlo.oracle import integrated_delta

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


def mixture_delta(points: np.ndarray, chances: list[float], epsilon: float) -> tuple[float, float]:
    """Remove and add for a mixture of N(point, I) against N(0, I) in the plane, on a grid."""
    axis = np.linspace(-11.0, 11.0, 1101)
    x, y = np.meshgrid(axis, axis)
    q = np.exp(-(x**2 + y**2) / 2.0) / (2.0 * np.pi)
    ratio = sum(p * np.exp(a * x + b * y - (a**2 + b**2) / 2.0) for p, (a, b) in zip(chances, points, strict=True))
    cell = (axis[1] - axis[0]) ** 2
    first, second = np.maximum(ratio - math.exp(epsilon), 0.0), np.maximum(1.0 - math.exp(epsilon) * ratio, 0.0)
    return float((first * q).sum() * cell), float((second * q).sum() * cell)


CORRELATED = np.array([[1.0, 0.4], [0.4, 0.8]])
AT = 1.2


def estimators() -> dict[str, tuple[Estimator, float]]:
    """One of each kind with the exact delta: orthogonal modes by convolution, the others by integrals."""
    pair, plane = bins_pair(np.eye(4), 1.0), bins_pair(CORRELATED, 0.7)
    orthogonal = allocation_delta(Allocation((1.0,), (4,)), AT)
    removed, added = integrated_delta(CORRELATED, 0.7, AT, points=1201)
    separated = dominating_pair(Toeplitz([1.0, 0.5], 2), PoissonMinSeparation(2, 0.7), 0.8)
    columns = np.array([[0.0, 0.0], [1.0, 0.5], [0.0, 1.0]]) / 0.8
    joined, absent = mixture_delta(columns, [0.09, 0.7, 0.21], AT)
    law = Law(separated.participation, -separated.squares / 2.0)
    return {
        "remove, powers, orthogonal": (Power(pair.split, 3), orthogonal[0]),
        "remove, powers, correlated": (Power(plane.split, 4), removed),
        "remove, plain": (plane.plain()[0], removed),
        "remove, cores, orthogonal": (best_cores(pair.split, AT, 6)[0], orthogonal[0]),
        "remove, cores, correlated": (best_cores(plane.split, AT, 4)[0], removed),
        "add, orthogonal": (best_tilt(pair.split, AT), orthogonal[1]),
        "add, correlated": (best_tilt(plane.split, AT), added),
        "add, plain": (plane.plain()[1], added),
        "remove, patterns": (Joined(separated, 0.7), joined),
        "remove, patterns, plain": (Joined(separated, 0.0), joined),
        "add, patterns": (Absent(separated, 1.0, law), absent),
        "add, patterns, plain": (Absent(separated, 0.0, law), absent),
    }


@pytest.mark.integration
@pytest.mark.parametrize("name", estimators())
def test_confidence_limits_cover_a_known_delta(name):
    """400 seeded repeats of the whole certified run for each kind of estimator, at beta = 0.05.

    An estimator whose mean is 5 % off would not pass either.
    """
    (estimator, truth), beta, samples, repeats = estimators()[name], 0.05, 400, 400
    effort = Effort(samples, math.log(1.0 / beta), randomness(1), workers=1)
    pilot = run_pilot(estimator, AT, 4000, effort)
    run = SamplingPlan(pilot, samples, pilot.expected(samples, effort.log_inverse)[0], 0.0)
    found = [run_certified(run, effort, randomness(1000 + i)) for i in range(repeats)]
    limits, means = np.array([limit.value for limit in found]), np.array([limit.estimate for limit in found])
    assert (limits < truth * (1.0 - 1e-4)).sum() <= most_failures(repeats, beta)
    assert np.median(limits) < 3.0 * truth
    assert abs(means.mean() - truth) < 4.5 * means.std() / math.sqrt(repeats) + 1e-3 * truth
