"""Optimisers for several curvatures: gradients against differences, values and optima against dense algebra."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import antiphase as ap
from antiphase._objective import Curvatures
from antiphase._optimize.banded import _BandedProblem
from antiphase._optimize.curvature_error import (
    LastIterateToeplitzError,
    banded_error,
    remembered_rows,
    toeplitz_squared_error,
)
from antiphase._optimize.participation_limits import worst_case_limits
from antiphase._optimize.toeplitz import _functions
from antiphase.strategies import Toeplitz
from tests.catalog import every_workload, random_banded
from tests.optimize.gradients import check_gradient, worst_pattern

WORKLOADS = [name for name, _ in every_workload(1)]
STEPS = ("last", "all", 0.4)


def objective(steps="last"):
    return Curvatures([0.0, 0.02, 0.3, 0.9], [1.0, 2.0, 0.5, 1.0], steps)


def brute_force(C, A, what):
    """J of a square matrix from its definition."""
    n, shares = len(C), what.weights / what.weights.sum()
    squares = [((A_h.matrix(n) @ np.linalg.inv(C)) ** 2).sum(axis=1) for A_h in what.workloads(A)]
    return float(shares @ [square[n - what.counted_steps(n) :].mean() for square in squares])


@given(
    n=st.integers(1, 12),
    bands=st.integers(1, 12),
    workload=st.sampled_from(WORKLOADS),
    steps=st.sampled_from(STEPS),
    normalized=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=120, deadline=None)
def test_toeplitz_value_and_gradient(n, bands, workload, steps, normalized, seed):
    bands, A, what = min(bands, n), dict(every_workload(n))[workload], objective(steps)
    promise = ap.MinSeparation(n if normalized else 3)
    rng = np.random.default_rng(seed)
    c = np.sort(rng.random(bands))[::-1].copy() + 0.05
    C = Toeplitz(c, n, column_normalized=normalized).encoder()
    function = _functions(n, worst_case_limits("test", promise, n), A, what, bands, normalized)[-1]
    expected = worst_pattern(C, promise) * math.sqrt(brute_force(C, A, what))
    assert math.exp(function(c, np.empty_like(c))) == pytest.approx(expected, rel=1e-9)
    check_gradient(function, c)


@given(
    n=st.integers(1, 10),
    bands=st.integers(1, 5),
    workload=st.sampled_from(WORKLOADS),
    steps=st.sampled_from(STEPS),
    signed=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=120, deadline=None)
def test_banded_value_gradient_and_bound(n, bands, workload, steps, signed, seed):
    rng, A, what, bands = (
        np.random.default_rng(seed),
        dict(every_workload(n))[workload],
        objective(steps),
        min(bands, n),
    )
    strategy = random_banded(rng, n, bands, signed)
    error, gradient = banded_error(A, what, n, bands), np.empty((n, bands))
    square = brute_force(strategy.encoder(), A, what)
    assert math.exp(2 * error(strategy.columns, 1.0, gradient)) == pytest.approx(square, rel=1e-8)
    inside = strategy.columns.ravel() != 0

    def function(x, slope):
        columns, whole = np.zeros((n, bands)), np.empty((n, bands))
        columns.ravel()[inside] = x
        value = error(columns, 1.0, whole)
        slope[:] = whole.ravel()[inside]
        return value

    check_gradient(function, strategy.columns.ravel()[inside].copy(), rtol=2e-6)
    # A bound at any matrix holds for every matrix of the problem, here those with columns of norm 1.
    problem = _BandedProblem(A, what, n, bands, count=1, period=n)
    unit = [
        each / np.linalg.norm(each, axis=1)[:, None]
        for each in (strategy.columns, random_banded(rng, n, bands, signed).columns)
    ]
    bound = problem.lower_bound(unit[0], 1.0)
    for columns in unit:
        assert bound <= math.exp(error(columns, 1.0, gradient)) * (1 + 1e-9)


@pytest.mark.parametrize("workload", ["prefix", "momentum", "schedule"])
@pytest.mark.parametrize("steps", STEPS)
def test_toeplitz_is_no_worse_than_any_search_by_brute_force(workload, steps):
    n, A, what, promise = 10, dict(every_workload(10))[workload], objective(steps), ap.SingleParticipation()
    found = ap.optimize("toeplitz", steps=n, participation=promise, workload=A, objective=what, bands=3)
    assert found.loss == pytest.approx(ap.loss(found.strategy, A, promise, what), rel=1e-12)

    def loss(x):
        C = Toeplitz(np.concatenate([[1.0], x]), n).encoder()
        return np.linalg.norm(C, axis=0).max() * math.sqrt(brute_force(C, A, what))

    for start in ([0.5, 0.3], [0.1, 0.0], [-0.3, 0.2]):
        assert minimize(
            loss, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
        ).fun >= found.loss * (1 - 1e-8)


@pytest.mark.parametrize("workload", ["prefix", "momentum", "schedule"])
@pytest.mark.parametrize("steps", STEPS)
def test_banded_stays_above_its_bound_and_beats_toeplitz(workload, steps):
    n, A, what, promise = 24, dict(every_workload(24))[workload], objective(steps), ap.FixedEpochs(3, 8)
    found = ap.optimize("banded", steps=n, participation=promise, workload=A, objective=what, bands=4)
    other = ap.optimize(
        "toeplitz", steps=n, participation=promise, workload=A, objective=what, bands=4, column_normalized=True
    )
    assert found.lower_bound <= found.loss <= other.loss * (1 + 1e-9)
    assert found.loss == pytest.approx(ap.loss(found.strategy, A, promise, what), rel=1e-12)


@pytest.mark.parametrize("workload", [ap.PrefixSum(), ap.Momentum(0.9)])
@pytest.mark.parametrize(("n", "bands"), [(20_000, 8), (20_000, 300), (1_000, 600)])
def test_forgotten_steps_do_not_count(n, bands, workload):
    """The rows of the last iterate, cut where they are forgotten, against responses of the whole run."""
    what, c = Curvatures([0.003, 0.1, 1.0], [1.0, 2.0, 1.0]), Toeplitz.square_root(n, bands).coefficients
    value, gradient = LastIterateToeplitzError(workload, what, n)(c)
    assert value == pytest.approx(ap.error(Toeplitz(c, n), workload, what).value ** 2, rel=1e-9)
    assert gradient @ c == pytest.approx(-2 * value, rel=1e-9)  # homogeneous of degree -2
    other = np.random.default_rng(0).normal(size=bands) / np.arange(1, bands + 1)
    error = LastIterateToeplitzError(workload, what, n)
    change = error(c + 1e-5 * other)[0] - error(c - 1e-5 * other)[0]
    assert change / 2e-5 == pytest.approx(gradient @ other, rel=1e-5)


def test_a_flat_direction_forgets_nothing():
    assert len(remembered_rows(ap.PrefixSum(), Curvatures([0.0, 0.5]), 20_000)) == 20_000
    assert len(remembered_rows(ap.PrefixSum(), Curvatures([0.1]), 20_000)) < 1_000


def test_a_million_steps_of_a_constant_rate():
    """Only the end of the run counts, so the optimum does not depend on what came before."""
    what = Curvatures.log_uniform(1e-2, 1.0, 5)
    losses = [
        ap.optimize(
            "toeplitz",
            steps=n,
            participation=ap.SingleParticipation(),
            workload=ap.Momentum(0.9),
            objective=what,
            bands=8,
        ).loss
        for n in (10_000, 10**6)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_schedule_over_several_steps_needs_the_recursion():
    A = ap.Momentum(0.9, ap.schedules.linear(50))
    assert toeplitz_squared_error(A, objective("all"), 50) is None
    assert toeplitz_squared_error(A, objective("last"), 50) is not None
