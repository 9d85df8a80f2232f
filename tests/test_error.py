"""Error against dense algebra, closed tails against full sums, and values from the literature."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._error import error, per_step_variances
from antiphase.strategies import BLT, Banded, BandedInverse, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.catalog import every_strategy, every_workload, random_banded

SIZES = (1, 2, 3, 5, 12, 33)
CASES = [(n, s, w) for n in SIZES for s, _ in every_strategy(n) for w, _ in every_workload(n)]


@pytest.mark.parametrize(("n", "strategy", "workload"), CASES)
def test_error_equals_dense_algebra(n, strategy, workload):
    C, A = dict(every_strategy(n))[strategy], dict(every_workload(n))[workload]
    expected = ((A.matrix(n) @ C.noising()) ** 2).sum(axis=1)
    found = error(C, A)
    np.testing.assert_allclose(found.per_step, expected, rtol=1e-8)
    assert math.isclose(found.rms, math.sqrt(expected.mean()), rel_tol=1e-8)
    assert math.isclose(found.max, math.sqrt(expected.max()), rel_tol=1e-8)


@given(
    n=st.integers(1, 12),
    bands=st.integers(1, 6),
    seed=st.integers(0, 2**20),
    beta=st.floats(0, 0.99),
    signed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_covariance_recursion_equals_dense_algebra(n, bands, seed, beta, signed):
    rng = np.random.default_rng(seed)
    C = random_banded(rng, n, min(bands, n), signed)
    A = ap.Momentum(beta, rng.random(n) + 0.2, weight_decay=0.2)
    expected = ((A.matrix(n) @ C.noising()) ** 2).sum(axis=1)
    np.testing.assert_allclose(per_step_variances(C, A), expected, rtol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64])
def test_momentum_matrix_follows_its_recursion(n):
    rng = np.random.default_rng(n)
    A = ap.Momentum(0.8, rng.random(n) + 0.1, weight_decay=0.3)
    theta, m, rows = np.zeros(n), np.zeros(n), []
    for t in range(n):
        m = A.beta * m + np.eye(n)[t]
        theta = (1 - A.learning_rates[t] * A.weight_decay) * theta + A.learning_rates[t] * m
        rows.append(theta)
    np.testing.assert_allclose(A.matrix(n), rows, rtol=1e-10, atol=1e-12)


LONG = {
    "toeplitz": Toeplitz(Toeplitz.square_root(16).coefficients, 40_000),
    "toeplitz-slow": Toeplitz([1.0, -0.9999], 40_000),
    "toeplitz-300": Toeplitz.square_root(40_000, 300),
    "inverse": BandedInverse.square_root(8, 40_000),
    "blt": BLT([0.999, 0.9], [0.01, 0.1], 40_000),
    "blt-slow": BLT([1.0, 0.99999], [1e-6, 1e-5], 40_000),
    "identity": Identity(40_000),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("workload", [ap.PrefixSum(), ap.Momentum(0.9), ap.Momentum(0.9, weight_decay=1e-4)])
def test_closed_tails_equal_the_sum_over_all_steps(name, workload):
    found = error(LONG[name], workload)
    assert math.isclose(found.rms, math.sqrt(found.per_step.mean()), rel_tol=1e-9)
    assert math.isclose(found.max, math.sqrt(found.per_step.max()), rel_tol=1e-9)


@pytest.mark.parametrize("name", ["toeplitz", "inverse", "blt"])
def test_filters_equal_the_covariance_recursions(name):
    """A schedule that is constant in all but name takes the other path."""
    strategy = LONG[name]
    rates = np.full(strategy.steps, 0.5)
    rates[0] = np.nextafter(0.5, 1.0)
    constant, scheduled = ap.Momentum(0.9, np.full(strategy.steps, 0.5)), ap.Momentum(0.9, rates)
    np.testing.assert_allclose(
        per_step_variances(strategy, scheduled), per_step_variances(strategy, constant), rtol=1e-9
    )


def test_full_toeplitz_by_fft_equals_the_recursion():
    n = 3000
    full, schedule = Toeplitz.square_root(n), ap.Momentum(0.9, ap.schedules.linear(n))
    by_shifts = per_step_variances(full, schedule)
    columns = full.columns()
    from antiphase._kernels.covariance import autoregressive_variances

    head = autoregressive_variances(
        columns[:200, :200] * (np.add.outer(np.arange(200), np.arange(200)) < 200), schedule.inverse_bands(n)[:200]
    )
    np.testing.assert_allclose(by_shifts[:200], head, rtol=1e-9)


def test_identity_prefix_sum_is_a_random_walk():
    assert error(Identity(9), ap.PrefixSum()).per_step.tolist() == list(range(1, 10))


def test_square_root_of_the_prefix_sum_has_harmonic_like_error():
    """||(1 - x)^(-1/2)||^2 over n terms: the max loss of the square root factorisation is its squared norm."""
    strategy = Toeplitz.square_root(1000)
    norm_squared = float((strategy.coefficients**2).sum())
    assert math.isclose(error(strategy, ap.PrefixSum()).max ** 2, norm_squared, rel_tol=1e-12)


def test_a_billion_steps_need_no_arrays():
    """For n steps of independent noise the mean variance is (n + 1) / 2."""
    n = 10**9
    assert math.isclose(error(Identity(n), ap.PrefixSum()).rms ** 2, (n + 1) / 2, rel_tol=1e-9)
    b = Toeplitz([1.0, 0.5], n)
    assert math.isclose(error(b, ap.PrefixSum()).max, math.sqrt(n) / 1.5, rel_tol=1e-6)


def test_error_sees_one_percent():
    """Scaling C by 1.01 lowers the error by exactly 1.01."""
    columns = random_banded(np.random.default_rng(0), 20, 4, signed=True).columns
    scaled = error(Banded(1.01 * columns), ap.PrefixSum()).rms
    assert math.isclose(1.01 * scaled, error(Banded(columns), ap.PrefixSum()).rms, rel_tol=1e-12)


@pytest.mark.parametrize("base", [Tree(8), Tree(7), Fourier(6, decoder="optimal")])
def test_stamped_equals_dense_algebra(base):
    strategy, n = Stamped(base, 4), 4 * base.steps
    for _, A in every_workload(n):
        expected = ((A.matrix(n) @ strategy.noising()) ** 2).sum(axis=1)
        np.testing.assert_allclose(error(strategy, A).per_step, expected, rtol=1e-9)
