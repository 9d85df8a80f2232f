"""Optimisers for `Curvatures`: gradients against finite differences, values and optima against dense algebra."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import antiphase as ap
from antiphase._kernels import workload_gram
from antiphase._objective import Curvatures
from antiphase._optimize.banded import _BandedProblem
from antiphase._optimize.banded_inverse import _errors, _quadratic_form
from antiphase._optimize.blt import blt_at, closed_loss
from antiphase._optimize.blt_decays import decays, to_points
from antiphase._optimize.blt_error import LastIterateSquaredError
from antiphase._optimize.blt_loss import BLTSquaredSensitivity, StepwiseLoss
from antiphase._optimize.curvature_error import (
    RowsToeplitzError,
    banded_error,
    remembered_rows,
    toeplitz_squared_error,
)
from antiphase._optimize.participation_limits import ParticipationLimits, worst_case_limits
from antiphase._optimize.toeplitz import _functions
from antiphase.strategies import BandedInverse, Toeplitz
from tests.catalog import every_workload, random_banded
from tests.optimize.gradients import check_gradient, differences, worst_pattern

WORKLOADS = [name for name, _ in every_workload(1)]
STEPS = ("last", "all", 0.4)


def objective(steps="last"):
    return Curvatures([0.0, 0.02, 0.3, 0.9], [1.0, 2.0, 0.5, 1.0], steps)


def brute_force(C, A, what):
    """Return the squared error J of `Curvatures` for a square C, from its definition."""
    n, shares = len(C), what.weights / what.weights.sum()
    noise = [A_h.matrix(n) @ np.linalg.inv(C) for A_h in what.workloads(A)]
    if what.steps == "all":
        return float(shares @ [np.square(rows).sum() / n for rows in noise])
    averaged = 1 if what.steps == "last" else max(1, round(what.steps * n))
    return float(shares @ [np.square(rows[n - averaged :].mean(axis=0)).sum() for rows in noise])


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


@pytest.mark.integration
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


@pytest.mark.integration
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
    value, gradient = RowsToeplitzError(remembered_rows(workload, what, n), n)(c)
    assert value == pytest.approx(ap.error(Toeplitz(c, n), workload, what).value ** 2, rel=1e-9)
    assert gradient @ c == pytest.approx(-2 * value, rel=1e-9)  # homogeneous of degree -2
    other = np.random.default_rng(0).normal(size=bands) / np.arange(1, bands + 1)
    error = RowsToeplitzError(remembered_rows(workload, what, n), n)
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


def blt_decays(rng, buffers, batch=3):
    logits = np.sort(rng.normal(size=(batch, 2 * buffers)) * 2.0)[:, ::-1] - 0.2 * np.arange(2 * buffers)
    return to_points(logits)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_blt_value_and_gradient(workload, steps, buffers):
    n, A, what = 11, dict(every_workload(11))[workload], objective(steps)
    points = blt_decays(np.random.default_rng(buffers), buffers)
    allowed = ParticipationLimits(4, 3)
    square = BLTSquaredSensitivity(n, 4, 3)
    stepwise = StepwiseLoss(n, square, A, 1.0, what)
    functions = [stepwise] if isinstance(steps, str) else []  # averages are computed from rows alone
    closed, is_exact = closed_loss(n, allowed, A, what)
    if is_exact:

        def batched(x, gradient):
            value, slope = closed(x[None])
            gradient[:] = slope[0]
            return float(value[0])

        functions.append(batched)
    assert is_exact == (steps != "all" or A.toeplitz_inverse is not None)
    for point in points:
        C = blt_at(point, n).encoder()
        pattern = np.linalg.norm(C[:, [0, 4, 8]].sum(axis=1))
        expected = pattern * math.sqrt(brute_force(C, A, what))
        for function in functions:
            assert math.exp(function(point, np.empty_like(point))) == pytest.approx(expected, rel=1e-8)
            check_gradient(function, point, rtol=1e-5)


@pytest.mark.parametrize("n", [3_000, 10**6])
def test_blt_rest_of_the_run_is_a_geometric_sum(n):
    """Long after the rows are forgotten, buffers that decay slowly still count."""
    what, A = Curvatures([0.05, 0.5]), ap.PrefixSum()
    point = to_points(np.array([[9.0, 7.0, 1.0, -1.0]]))
    rows = remembered_rows(A, what, n)
    assert len(rows) < 1_500
    found = decays(point)
    value, gradient = LastIterateSquaredError(rows, n)(found)
    expected = ap.error(blt_at(point[0], n), A, what).value ** 2
    assert value[0] == pytest.approx(expected, rel=1e-9)
    function = lambda x, g: float(LastIterateSquaredError(rows, n)(decays(x[None]))[0][0])  # noqa: E731
    np.testing.assert_allclose(gradient[0], differences(function, point[0]), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("workload", ["prefix", "momentum", "schedule"])
def test_blt_beats_one_buffer_less_and_reports_its_loss(workload):
    n, A, promise = 200, dict(every_workload(200))[workload], ap.FixedEpochs(4, 50)
    what = Curvatures.log_uniform(1e-3, 1.0, 9)
    one, two = (
        ap.optimize("blt", steps=n, participation=promise, workload=A, objective=what, buffers=d) for d in (1, 2)
    )
    assert two.lower_bound is None
    assert two.loss <= one.loss * (1 + 1e-9)
    for found in (one, two):
        assert found.loss == pytest.approx(ap.loss(found.strategy, A, promise, what), rel=1e-9)
    rms = ap.optimize("blt", steps=n, participation=promise, workload=A, buffers=2)
    assert two.loss < ap.loss(rms.strategy, A, promise, what)


@given(
    n=st.integers(1, 12),
    bands=st.integers(1, 6),
    workload=st.sampled_from(WORKLOADS),
    steps=st.sampled_from(STEPS),
    seed=st.integers(0, 1000),
)
@settings(max_examples=80, deadline=None)
def test_banded_inverse_value_and_gradient(n, bands, workload, steps, seed):
    bands, A, what = min(bands, n), dict(every_workload(n))[workload], objective(steps)
    d = np.random.default_rng(seed).normal(size=bands)
    d[0] = 1.5
    (error,) = _errors(A, what, n, bands)
    value, _ = error(d)
    C = np.linalg.inv(BandedInverse(d, n).noising())
    assert math.exp(2 * value) == pytest.approx(brute_force(C, A, what), rel=1e-8)

    def function(x, slope):
        result, slope[:] = error(x)
        return result

    check_gradient(function, d)


def test_banded_inverse_of_a_long_run_by_responses():
    A, what = ap.Momentum(0.5), objective("last")
    long_, short = (_quadratic_form(A.with_curvature(0.3), n, 1, 4) for n in (10**5, 5_000))
    np.testing.assert_allclose(long_, short, rtol=1e-9)
    found = ap.optimize(
        "banded-inverse", steps=10**5, participation=ap.SingleParticipation(), workload=A, objective=what, bands=3
    )
    assert found.loss == pytest.approx(ap.loss(found.strategy, A, ap.SingleParticipation(), what), rel=1e-9)


@pytest.mark.parametrize("weights", ["all", "last", "some"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_gram_recursion_equals_dense_algebra(workload, weights):
    n, A = 9, dict(every_workload(9))[workload].with_curvature(0.3)
    w = {"all": np.ones(n), "last": np.eye(n)[-1], "some": np.random.default_rng(0).random(n)}[weights]
    matrix = A.matrix(n)
    expected = matrix.T @ np.diag(w) @ matrix
    np.testing.assert_allclose(
        workload_gram(A.inverse_bands(n), w), expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max()
    )


@pytest.mark.integration
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("workload", ["prefix", "momentum", "schedule"])
@pytest.mark.parametrize("equal_norms", [True, False])
@pytest.mark.parametrize(
    "participation", [ap.SingleParticipation(), ap.FixedEpochs(3, 4), ap.MinSeparation(4)], ids=["one", "epochs", "gap"]
)
def test_dense_is_below_every_other_strategy_and_above_its_bound(participation, equal_norms, workload, steps):
    n, A, what = 12, dict(every_workload(12))[workload], objective(steps)
    found = ap.optimize(
        "dense", steps=n, participation=participation, workload=A, objective=what, equal_norms=equal_norms
    )
    C, limit = found.strategy.encoder(), 0.05
    expected = ap.sensitivity(found.strategy, participation).value * math.sqrt(brute_force(C, A, what))
    assert found.loss == pytest.approx(expected, rel=1e-7)
    assert found.lower_bound <= found.loss <= (1 + limit) * found.lower_bound
    # The bound is below the loss of feasible matrices of other families.
    for family, options in (("toeplitz", {"bands": 4, "column_normalized": True}), ("banded", {"bands": 4})):
        other = ap.optimize(family, steps=n, participation=participation, workload=A, objective=what, **options)
        assert other.loss >= found.lower_bound * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_dense_bound_holds_for_random_feasible_matrices(seed):
    """A single participation: all columns have norm at most 1, and nothing else is required."""
    n, A, what = 8, ap.Momentum(0.9), objective()
    found = ap.optimize("dense", steps=n, participation=ap.SingleParticipation(), workload=A, objective=what)
    best = found.strategy.encoder() / np.linalg.norm(found.strategy.encoder(), axis=0)
    rng = np.random.default_rng(seed)
    for size in (1e-3, 1e-2, 0.1, 1.0):
        for _ in range(50):
            C = best + size * np.tril(rng.normal(size=(n, n)))
            C /= np.linalg.norm(C, axis=0)
            assert math.sqrt(brute_force(C, A, what)) >= found.lower_bound


def test_dense_by_brute_force_for_one_direction():
    """With y = C^-T a, a_i = C e_i . y, so |a_i| <= |y| for columns of norm 1: the optimum is the largest |a_i|."""
    n, A, what = 6, ap.PrefixSum(), Curvatures([0.3])
    a = A.with_curvature(0.3).matrix(n)[-1]
    found = ap.optimize("dense", steps=n, participation=ap.SingleParticipation(), workload=A, objective=what)
    assert found.loss >= np.abs(a).max() * (1 - 1e-9)
    assert found.lower_bound <= np.abs(a).max() * (1 + 1e-9)
    assert found.loss <= 1.05 * np.abs(a).max()


def test_dense_constraints_are_refused():
    for constraint in ("nonnegative", "scalar"):
        with pytest.raises(ap.InvalidArgument, match="'rms' and 'max' only"):
            ap.optimize(
                "dense", steps=8, participation=ap.FixedEpochs(2, 4), objective=objective(), constraint=constraint
            )
