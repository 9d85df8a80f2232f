"""Sums of privacy losses against quadrature, direct convolution, sampling and dp_accounting."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from antiphase._accounting import gaussian, loss_accountant, loss_grid
from antiphase._accounting.loss_accountant import COARSE, GaussianSteps, delta, epsilon
from antiphase._accounting.loss_grid import LossGrid, addition, mixture, removal, substitution
from antiphase._accounting.loss_sum import LossSum, Moments, _Window
from tests.accounting.oracle import decreasing_root, mixture_delta, sampled_delta, twice_sampled_delta

SINGLE = [(1.0, 0.3), (0.2, 0.01), (2.5, 0.05), (1.0, 1e-4), (0.7, 0.9), (4.0, 0.5)]


def grid_delta(grid: LossGrid, at: float) -> float:
    """The divergence of a grid as it stands."""
    above = grid.losses > at
    return grid.infinite + float(grid.probabilities[above] @ -np.expm1(at - grid.losses[above]))


@pytest.mark.parametrize(("mu", "rate"), [*SINGLE, (1.0, 1.0)])
def test_grids_are_exact_at_their_points_and_above_in_between(mu, rate):
    interval, pairs = (
        0.01,
        {
            removal: ([(1.0 - rate, 0.0), (rate, mu)], [(1.0, 0.0)]),
            addition: ([(1.0, 0.0)], [(1.0 - rate, 0.0), (rate, mu)]),
        },
    )
    for make, (p, q) in pairs.items():
        grid = make(mu, rate, interval, -40.0)
        assert grid.probabilities.min() >= 0.0
        assert abs(grid.probabilities.sum() + grid.infinite - 1.0) < 1e-12
        for steps in (-20, 0, 3, 60, 150):
            truth = mixture_delta(p, q, steps * interval)
            found = grid_delta(grid, steps * interval)
            assert truth * (1 - 1e-9) - 1e-15 <= found <= truth * (1 + 1e-6) + 1e-12
            between = (steps + 0.4) * interval
            assert grid_delta(grid, between) >= mixture_delta(p, q, between) * (1 - 1e-9) - 1e-15


@pytest.mark.parametrize(("mu", "rate"), [*SINGLE, (1.0, 1.0)])
def test_substitution_is_the_larger_direction_at_every_epsilon(mu, rate):
    grid = substitution(mu, rate, 0.01, -40.0)
    assert grid.probabilities.min() >= 0.0
    assert abs(grid.probabilities.sum() + grid.infinite - 1.0) < 1e-12
    for steps in (-150, -60, -3, 0, 3, 60, 150):
        forward = mixture_delta([(1.0 - rate, 0.0), (rate, mu)], [(1.0, 0.0)], steps * 0.01)
        backward = mixture_delta([(1.0, 0.0)], [(1.0 - rate, 0.0), (rate, mu)], steps * 0.01)
        found = grid_delta(grid, steps * 0.01)
        larger = max(forward, backward)
        assert larger * (1 - 1e-9) - 1e-15 <= found <= larger * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(("mu", "rate"), SINGLE)
@pytest.mark.parametrize("target", [1e-3, 1e-9, 1e-14])
def test_one_step_lies_between_the_truth_and_that_of_one_percent_less_noise(mu, rate, target):
    def truth(shift: float) -> float:
        return decreasing_root(lambda e: sampled_delta(shift, rate, e) - target, 0.0, 200.0)

    found = epsilon([GaussianSteps(mu, rate, 1)], target)
    assert truth(mu) - 1e-12 <= found <= max(truth(1.01 * mu), 1e-12)


@pytest.mark.parametrize(("mu", "rate"), [(1.0, 0.3), (2.0, 0.05), (0.5, 0.7)])
@pytest.mark.parametrize("at", [0.5, 2.0, 4.0])
def test_two_steps_lie_between_the_truth_and_that_of_one_percent_less_noise(mu, rate, at):
    truth, less_noise = (twice_sampled_delta(shift, rate, at) for shift in (mu, 1.01 * mu))
    found = delta([GaussianSteps(mu, rate, 2)], at)
    assert truth * (1 - 1e-7) <= found < less_noise
    assert epsilon([GaussianSteps(mu, rate, 2)], truth) >= at - 1e-6


@pytest.mark.parametrize(("mu", "count"), [(0.1, 50), (0.02, 5000), (1.0, 3)])
@pytest.mark.parametrize("target", [1e-2, 1e-6, 1e-12, 1e-30, 1e-200])
def test_steps_that_always_see_the_example_are_one_gaussian(mu, count, target):
    exact = gaussian.epsilon(mu * math.sqrt(count), target)
    assert exact <= epsilon([GaussianSteps(mu, 1.0, count)], target) <= 1.0002 * exact


@pytest.mark.parametrize(("mu", "count"), [(40.0, 1), (15.0, 9), (1.0, 2000), (3.0, 2)])
@pytest.mark.parametrize("at", [0.01, 1.0, 30.0])
def test_delta_of_hardly_any_privacy(mu, count, at):
    exact = gaussian.delta(mu * math.sqrt(count), at)
    assert exact * (1 - 1e-9) <= delta([GaussianSteps(mu, 1.0, count)], at) <= min(1.0, exact * (1 + 1e-3))
    assert epsilon([GaussianSteps(mu, 1.0, count)], exact * (1 - 1e-9)) >= at * (1 - 1e-9)


@pytest.mark.parametrize("target", [1e-4, 1e-8, 1e-13, pytest.param(1e-18, marks=pytest.mark.slow)])
def test_transform_agrees_with_direct_convolution(target):
    # Direct sums of positive numbers lose no digits, whatever delta is.
    grid = removal(1.0, 0.02, 0.02, math.log(1e-7 * target / 64))
    masses = grid.probabilities
    for _ in range(6):
        masses = np.convolve(masses, masses)
    losses = (64 * grid.start + np.arange(len(masses))) * grid.interval
    infinite = -math.expm1(64 * math.log1p(-grid.infinite))
    truth = decreasing_root(lambda e: infinite + masses @ -np.expm1(np.minimum(e - losses, 0.0)) - target, 0.0, 60.0)
    found = LossSum([(grid, 64)])
    assert truth - 1e-9 <= found.epsilon(target) <= truth * (1 + 1e-5)
    assert target * (1 - 1e-6) <= found.delta(truth) <= target * (1 + 1e-4)


@pytest.mark.integration
def test_rare_jumps_agree_with_direct_convolution():
    # A tilt does not reach epsilon here: the bulk is at zero and a single step makes the difference.
    mu, rate, count, target, interval = 1.05, 2e-4, 1024, 1e-12, 2e-4
    grid = removal(mu, rate, interval, math.log(1e-6 * target / count))
    masses, start, cut = grid.probabilities, grid.start, round(0.6 / interval)
    for _ in range(10):
        start *= 2
        masses = np.convolve(masses, masses)[: cut - start]
    losses = (start + np.arange(len(masses))) * interval
    low = decreasing_root(lambda e: masses @ -np.expm1(np.minimum(e - losses, 0.0)) - target, 0.0, 0.6)
    assert low <= LossSum([(grid, count)]).epsilon(target) <= 1.002 * low


def test_many_steps_agree_with_sampling():
    mu, rate, count, at, samples = 0.8, 0.1, 30, 0.5, 400_000
    rng = np.random.default_rng(1)
    total = np.zeros(samples)
    for _ in range(count):
        x = rng.normal(size=samples) + mu * (rng.random(samples) < rate)
        total += np.log1p(rate * np.expm1(mu * x - mu**2 / 2.0))
    shares = np.maximum(0.0, -np.expm1(at - total))
    error = shares.std() / math.sqrt(samples)
    found = delta([GaussianSteps(mu, rate, count)], at)
    assert abs(found - shares.mean()) < 4.0 * error
    assert (
        delta([GaussianSteps(1.05 * mu, rate, count)], at) > shares.mean() + 4.0 * error
    )  # the test has the power to see 5 %


@pytest.mark.parametrize(
    ("multiplier", "rate", "count"), [(0.7, 0.01, 300), (1.0, 0.1, 50), (2.0, 0.5, 40), (5.0, 0.02, 1000)]
)
def test_agrees_with_dp_accounting(multiplier, rate, count):
    # Its default interval of 1e-4 is too wide where the loss of a step is small.
    interval = min(1e-3, 0.02 * rate / multiplier)
    peer = pld.from_gaussian_mechanism(multiplier, sampling_prob=rate, value_discretization_interval=interval)
    together = peer.self_compose(count)
    for target in (1e-3, 1e-6):
        found = epsilon([GaussianSteps(1.0 / multiplier, rate, count)], target)
        assert found == pytest.approx(together.get_epsilon_for_delta(target), rel=3e-4)


def test_epsilon_stays_finite_and_monotone_where_the_default_of_dp_accounting_is_infinite():
    part = [GaussianSteps(1.0 / 0.75, 0.01, 2000)]
    peer = pld.from_gaussian_mechanism(0.75, sampling_prob=0.01, value_discretization_interval=1e-3).self_compose(2000)
    assert peer.get_epsilon_for_delta(1e-15) == math.inf
    targets = [10.0**-k for k in (4, 6, 8, 10, 12, 14, 15, 16, 20, 40)]
    values = [epsilon(part, target, COARSE) for target in targets]
    assert values == sorted(values)
    assert values[-1] < 100.0
    assert values[targets.index(1e-12)] == pytest.approx(10.19, rel=1e-3)


@settings(max_examples=10, deadline=None)
@given(
    multiplier=st.floats(0.4, 20.0),
    rate=st.floats(1e-3, 1.0),
    count=st.integers(1, 3000),
    log_delta=st.floats(-14.0, -2.0),
)
def test_epsilon_is_monotone(multiplier, rate, count, log_delta):
    def value(multiplier=multiplier, rate=rate, count=count, log_delta=log_delta):
        return epsilon([GaussianSteps(1.0 / multiplier, rate, count)], 10.0**log_delta, COARSE)

    base = value() * (1 + 2e-3)  # the coarse grid is that rough
    assert value(multiplier=1.2 * multiplier) <= base
    assert value(rate=0.8 * rate) <= base
    assert value(count=max(1, count * 3 // 4)) <= base
    assert value(log_delta=log_delta / 2.0) <= base


def assert_not_below_one_step(multiplier, rate, count, log_delta):
    """More steps never cost less than one, whose divergence has a closed form at any delta."""
    mu, target = 1.0 / multiplier, 10.0**log_delta
    found = epsilon([GaussianSteps(mu, rate, count)], target, COARSE)
    inner = math.log1p(math.expm1(found) / rate) if found < 500.0 else found - math.log(rate)
    assert math.log(rate) + math.log(max(gaussian.delta(mu, inner), 5e-324)) <= math.log(target) + 1e-9


@settings(max_examples=20, deadline=None)
@given(
    multiplier=st.floats(-1.5, 3.0).map(lambda x: 10.0**x),
    rate=st.floats(-7.0, 0.0).map(lambda x: 10.0**x),
    count=st.integers(1, 2),
    log_delta=st.floats(-250.0, -1.0),
)
def test_never_below_the_truth_in_extremes(multiplier, rate, count, log_delta):
    assert_not_below_one_step(multiplier, rate, count, log_delta)


@pytest.mark.parametrize(
    ("multiplier", "rate", "log_delta"),
    [
        (8.1, 9.3e-5, -230.8),
        (5.1, 7.9e-4, -297.8),
        (338.3, 3.2e-6, -61.9),
        (1.38, 6.6e-6, -75.7),
        (5.77, 6.7e-3, -270.3),
        (0.31, 2.1e-8, -12.1),
        (4.8, 3.0e-8, -177.9),
    ],
)
def test_never_below_the_truth_where_transforms_have_no_digits_left(multiplier, rate, log_delta):
    assert_not_below_one_step(multiplier, rate, 2, log_delta)


@pytest.mark.parametrize("make", [removal, addition])
def test_mass_outside_the_grid_is_kept_on_the_safe_side(make, monkeypatch):
    monkeypatch.setattr(loss_grid, "LOWER_TAIL", 1.0)
    mu, rate = 1.0, 0.3
    grid = make(mu, rate, 0.01, -4.0)
    assert grid.infinite > 1e-3
    assert grid.probabilities[0] > 0.05
    assert abs(grid.probabilities.sum() + grid.infinite - 1.0) < 1e-12
    sides = [(1.0 - rate, 0.0), (rate, mu)], [(1.0, 0.0)]
    for steps in (-30, 0, 30, 100):
        truth = mixture_delta(*(sides if make is removal else sides[::-1]), steps * 0.01)
        assert grid_delta(grid, steps * 0.01) >= truth * (1 - 1e-9)


def test_rounding_that_swallows_everything_gives_the_largest_loss():
    losses = np.linspace(0.0, 3.0, 31)
    window = _Window(Moments(1.0, 0.0, 1.0, 1.0), losses, np.full(31, 1.0 / 31), error=1e6)
    assert window.epsilon(1e-3) == (3.0, 1.0)
    assert window.epsilon(0.0)[0] == math.inf


def test_round_trip():
    for part in (GaussianSteps(1.3, 0.01, 1000), GaussianSteps(0.2, 0.4, 200)):
        for target in (1e-3, 1e-8, 1e-20):
            assert delta([part], epsilon([part], target)) == pytest.approx(target, rel=1e-4)


def test_a_mixture_lies_between_its_parts():
    first, second = (removal(mu, 0.1, 0.01, -40.0) for mu in (1.0, 2.0))
    both = mixture(first, second, 0.25)
    for at in (0.0, 1.0, 3.0):
        assert grid_delta(both, at) == pytest.approx(0.75 * grid_delta(first, at) + 0.25 * grid_delta(second, at))


def one_step(mu: float, rate: float, delta: float) -> float:
    """The smallest epsilon of one sampled step, from the divergence of the two densities above the loss."""

    def removal(epsilon: float) -> float:
        if math.expm1(epsilon) <= -rate:
            return 1.0
        x = math.log1p(math.expm1(epsilon) / rate) / mu + mu / 2.0
        return float(rate * norm.sf(x - mu) + (1.0 - rate - math.exp(epsilon)) * norm.sf(x))

    return float(brentq(lambda e: removal(e) - delta, 0.0, 50.0, xtol=1e-14)) if removal(0.0) > delta else 0.0


@pytest.mark.parametrize("rate", [1e-6, 1e-4, 1e-3, 0.01, 0.3])
def test_one_sampled_step_is_within_what_is_said(rate):
    """1e-4 at rates of 0.001 and above, 2 % below, never less."""
    for mu in (0.2, 1.0, 2.0):
        for target in (rate * 1e-2, rate * 1e-5):
            found, truth = epsilon([GaussianSteps(mu, rate, 1)], target), one_step(mu, rate, target)
            assert truth * (1 - 1e-7) <= found <= truth * (1.0001 if rate >= 1e-3 else 1.02)


FEW = [(0.2, 0.01, 10_000, 1e-5), (2.0, 0.3, 100, 1e-5), (1.0, 0.001, 100, 1e-10)]
RARE = [(2.0, 1e-5, 100, 1e-5)]


@pytest.mark.parametrize(("mu", "rate", "count", "target"), FEW + RARE)
def test_many_sampled_steps_are_within_what_is_said(mu, rate, count, target, monkeypatch):
    """Against a grid four times as fine, whose own error is a sixteenth."""
    found = epsilon([GaussianSteps(mu, rate, count)], target)
    monkeypatch.setattr(loss_accountant, "LARGEST_GRID", 1 << 20)
    fine = epsilon([GaussianSteps(mu, rate, count)], target, loss_accountant.FINE / 4)
    assert fine <= found * (1 + 1e-5)
    assert found <= fine * (1.00009 if rate >= 1e-3 else 1.019)
