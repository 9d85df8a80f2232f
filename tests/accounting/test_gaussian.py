"""One Gaussian mechanism against arbitrary precision."""

import math

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphase._accounting import gaussian
from tests.accounting.oracle import gaussian_delta

shifts = st.floats(-6.0, 1.5).map(lambda x: 10.0**x)
deltas = st.floats(-300.0, -0.001).map(lambda x: 10.0**x)


@settings(max_examples=60, deadline=None)
@given(mu=shifts, delta=deltas)
def test_epsilon_is_the_smallest_and_never_below(mu, delta):
    found = gaussian.epsilon(mu, delta)
    truth = gaussian_delta(mu, found)
    assert truth <= mpmath.mpf(delta)
    if found > 0.0:  # a step of 1e-9 down in the argument of the tail is too far
        assert gaussian_delta(mu, found - 1e-9 * mu * (found / mu + mu)) > mpmath.mpf(delta)


@settings(max_examples=60, deadline=None)
@given(mu=shifts, delta=deltas)
def test_delta_is_rounded_up_and_fits_epsilon(mu, delta):
    epsilon = gaussian.epsilon(mu, delta)
    found = gaussian.delta(mu, epsilon)
    truth = gaussian_delta(mu, epsilon)
    assert truth <= mpmath.mpf(found)
    assert found <= delta
    assert found == 0.0 or mpmath.mpf(found) <= truth * (1 + mpmath.mpf(1e-8))


@settings(max_examples=60, deadline=None)
@given(epsilon=st.floats(-4.0, 3.0).map(lambda x: 10.0**x), delta=deltas)
def test_shift_is_the_largest_and_never_above(epsilon, delta):
    mu = gaussian.shift(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= mpmath.mpf(delta)
    assert gaussian_delta(mu * (1.0 + 1e-9), epsilon) > mpmath.mpf(delta)


@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [0.3, 1e-6, 1e-100, 1e-300])
def test_one_percent_less_noise_is_seen(mu, delta):
    more = gaussian.epsilon(1.01 * mu, delta)
    if more > 0.0:
        assert gaussian_delta(1.01 * mu, gaussian.epsilon(mu, delta)) > mpmath.mpf(delta)
        assert more > gaussian.epsilon(mu, delta)


def test_epsilon_falls_with_delta_and_rises_with_the_shift():
    grid = [10.0**-k for k in range(1, 301)]
    values = [gaussian.epsilon(0.7, delta) for delta in grid]
    assert values == sorted(values)
    values = [gaussian.epsilon(10.0 ** (k / 40.0), 1e-9) for k in range(-160, 80)]
    assert values == sorted(values)


def test_noise_beyond_all_measure():
    assert gaussian.epsilon(1e-300, 1e-6) == 0.0
    assert gaussian.epsilon(1e300, 1e-6) == math.inf
    assert gaussian.delta(1e-300, 1.0) < 1e-300
    assert gaussian.delta(1e300, 1.0) == 1.0


@settings(max_examples=300, deadline=None)
@given(exponent=st.floats(0.0, 40.0), a=st.floats(-5.0, 20.0), steps=st.integers(-20, 20))
def test_delta_is_rounded_up_where_its_argument_cancels(exponent, a, steps):
    """epsilon / mu - mu / 2 has no digits left at mu = 4e16: delta came out as 0 where it is 0.5."""
    mu = 10.0**exponent
    epsilon = mu * (a + mu / 2.0)
    epsilon += steps * math.ulp(epsilon)
    if epsilon > 0.0:
        found = gaussian.delta(mu, epsilon)
        truth = gaussian_delta(mu, epsilon, digits=200)
        assert truth <= mpmath.mpf(found)
        if mu < 1e9:  # a is known to 1e-6
            assert mpmath.mpf(found) <= truth * (1 + mpmath.mpf(1e-3))


@pytest.mark.parametrize("mu", [1e18, 1e30, 1e100, 1e150])
def test_delta_is_still_small_where_epsilon_leaves_no_doubt(mu):
    assert gaussian.delta(mu, mu * mu / 2.0) == 1.0
    assert gaussian.delta(mu, mu * mu * 0.51) < 1e-300
