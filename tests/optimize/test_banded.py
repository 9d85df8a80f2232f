"""Optimised banded strategies: gradients by the reverse recursion, published values, lower bounds and limits."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._error import error
from antiphase._kernels.covariance_gradient import covariance_backward, covariance_forward, gram_gradient
from antiphase._loss import loss
from antiphase._optimize import optimize
from antiphase._optimize.banded import _BandedProblem
from antiphase._optimize.banded_error import column_squares
from antiphase.strategies import Banded
from tests.catalog import every_workload, random_banded
from tests.optimize.gradients import check_gradient, dense_error, dense_variances

SINGLE = ap.SingleParticipation()
WORKLOADS = [name for name, _ in every_workload(3)]


def best(steps, bands, participation=SINGLE, **options):
    return optimize("banded", steps=steps, participation=participation, bands=bands, **options)


def dense(columns):
    n, bands = columns.shape
    C = np.zeros((n, n))
    for r in range(bands):
        C[np.arange(r, n), np.arange(n - r)] = columns[: n - r, r]
    return C


@given(
    n=st.integers(1, 12),
    bands=st.integers(1, 12),
    workload=st.sampled_from(WORKLOADS),
    signed=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=80, deadline=None)
def test_recursion_and_its_reverse_equal_dense_algebra(n, bands, workload, signed, seed):
    rng, A, bands = np.random.default_rng(seed), dict(every_workload(n))[workload], min(bands, n)
    columns = random_banded(rng, n, bands, signed).columns.copy()
    inverse, weights = A.inverse_bands(n), rng.random(n)
    covariance, gradient = np.empty((n, bands + inverse.shape[1] - 1)), np.empty_like(columns)
    covariance_forward(columns, inverse, covariance)
    C, T = dense(columns), A.matrix(n)
    B = T @ np.linalg.inv(C)
    Z = B @ B.T
    for r in range(min(n, covariance.shape[1])):
        np.testing.assert_allclose(covariance[r:, r], np.diagonal(Z, -r), rtol=1e-7, atol=1e-9 * Z.max())
    covariance_backward(columns, inverse, covariance, weights, gradient)
    # d tr(B^T W B) = -2 tr(B^T W B dC C^-1), so the gradient for C is -2 (C^-1 B^T W B)^T.
    expected = -2.0 * (np.linalg.inv(C) @ B.T @ (weights[:, None] * B)).T
    for r in range(bands):
        column = np.diagonal(expected, -r)
        np.testing.assert_allclose(gradient[: n - r, r], column, rtol=1e-6, atol=1e-8 * np.abs(expected).max())
        assert (gradient[n - r :, r] == 0).all()


@given(
    n=st.integers(1, 8),
    bands=st.integers(1, 4),
    workload=st.sampled_from(WORKLOADS),
    power=st.sampled_from([1.0, 4.0, 32.0]),
    period=st.integers(1, 8),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=60, deadline=None)
def test_gradient_equals_differences(n, bands, workload, power, period, seed):
    rng, A, bands, period = (
        np.random.default_rng(seed),
        dict(every_workload(n))[workload],
        min(bands, n),
        min(period, n),
    )
    problem = _BandedProblem(A, "rms", n, bands, count=-(-n // period), period=period)
    columns = random_banded(rng, n, bands, signed=False).columns
    inside = columns.ravel() != 0

    def function(x, gradient):
        point, whole = np.zeros(columns.size), np.empty(columns.size)
        point[inside] = x
        value = problem._evaluate(point, whole, power)
        gradient[:] = whole[inside]
        return value

    check_gradient(function, columns.ravel()[inside].copy(), rtol=2e-6)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_column_squares(workload):
    A = dict(every_workload(9))[workload]
    np.testing.assert_allclose(column_squares(A.inverse_bands(9)), (A.matrix(9) ** 2).sum(axis=0), rtol=1e-10)


def test_gram_gradient_equals_dense_algebra():
    n, bands = 12, 4
    columns = random_banded(np.random.default_rng(3), n, bands, signed=True).columns.copy()
    inverse, covariance, gradient = ap.PrefixSum().inverse_bands(n), np.empty((n, bands + 1)), np.empty((n, bands))
    covariance_forward(columns, inverse, covariance)
    covariance_backward(columns, inverse, covariance, np.ones(n), gradient)
    X_inverse = np.linalg.inv(dense(columns).T @ dense(columns))
    A = ap.PrefixSum().matrix(n)
    expected = -X_inverse @ A.T @ A @ X_inverse
    found = gram_gradient(columns, gradient)
    for r in range(bands):
        np.testing.assert_allclose(found[: n - r, r], np.diagonal(expected, -r), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("n", "bands", "total"),
    [
        (2, 2, 2.618034),
        (3, 3, 4.60786165),
        (8, 8, 17.8661773),
        (64, 64, 282.201421),
        (16, 4, 57.9361836),
        (64, 8, 439.494988),
    ],
)
def test_reference_totals(n, bands, total):
    """With as many bands as steps, the optimum over all matrices for a single participation."""
    found = best(n, bands)
    assert found.converged
    assert found.loss**2 * n == pytest.approx(total, rel=2e-9, abs=5e-7)
    assert found.loss * (1 - 1e-4) <= found.lower_bound <= found.loss * (1 + 1e-12)


@pytest.mark.parametrize(("n", "value", "gap"), [(1024, 6.29884, 1e-4), (4096, 11.8474, 3e-4)])
def test_reference_rms(n, value, gap):
    found = best(n, 16)
    assert found.loss == pytest.approx(value, abs=6e-6 if n == 1024 else 6e-5)
    assert found.lower_bound >= found.loss * (1 - gap)


def test_example_b1():
    """The optimal 3-banded matrix for 9 steps as printed (McKenna 2024, Example B.1)."""
    printed = [
        [0.740, 0.500, 0.450],
        [0.822, 0.492, 0.286],
        [0.876, 0.395, 0.278],
        [0.821, 0.462, 0.335],
        [0.855, 0.442, 0.272],
        [0.882, 0.403, 0.243],
        [0.892, 0.409, 0.194],
        [0.936, 0.353, 0.0],
        [1.000, 0.0, 0.0],
    ]
    np.testing.assert_allclose(best(9, 3).strategy.columns, printed, atol=6e-4)


def test_the_workload_is_recovered_at_full_width():
    """n = 2: the optimum over all matrices is the golden ratio's, tr = (3 + sqrt 5) / 2."""
    assert best(2, 2).loss ** 2 * 2 == pytest.approx((3 + math.sqrt(5)) / 2, rel=1e-10)


@pytest.mark.parametrize("objective", ["rms", "max"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_loss_is_the_true_one_and_no_other_matrix_is_below_the_bound(workload, objective):
    n, bands, A = 12, 3, dict(every_workload(12))[workload]
    found = best(n, bands, ap.MinSeparation(4), workload=A, objective=objective)
    C = dense(found.strategy.columns)
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1.0, rtol=1e-12)
    assert found.loss == pytest.approx(math.sqrt(3) * dense_error(C, A.matrix(n), objective), rel=1e-9)
    rng = np.random.default_rng(0)
    for spread in (0.01, 0.1, 1.0):
        for _ in range(20):
            other = found.strategy.columns * (1 + spread * rng.normal(size=(n, bands)))
            other /= np.linalg.norm(other, axis=1, keepdims=True)
            value = loss(Banded(other), A, ap.MinSeparation(4), objective)
            assert value >= found.lower_bound
            assert value >= found.loss * (1 - (1e-9 if objective == "rms" else 2e-4))


@given(seed=st.integers(0, 2**20), iterations=st.integers(1, 4), objective=st.sampled_from(["rms", "max"]))
@settings(max_examples=20, deadline=None)
def test_bound_holds_far_from_the_optimum(seed, iterations, objective):
    """Stopped early the bound is loose, and still below the loss of the true optimum."""
    rng = np.random.default_rng(seed)
    A = ap.Momentum(0.5, rng.random(10) + 0.1)
    early = best(10, 3, workload=A, objective=objective, max_iterations=iterations)
    late = best(10, 3, workload=A, objective=objective)
    assert early.lower_bound <= late.loss <= early.loss * (1 + 2e-4)
    assert late.lower_bound <= late.loss


def test_max_against_a_solver_for_the_constrained_problem():
    """Minimise t subject to every variance <= t, by sequential quadratic programming."""
    from scipy.optimize import minimize

    n, bands, A = 6, 3, ap.PrefixSum().matrix(6)
    inside = np.add.outer(np.arange(n), np.arange(bands)) < n

    def variances(x):
        columns = np.zeros((n, bands))
        columns[inside] = x[:-1]
        return dense_variances(dense(columns / np.linalg.norm(columns, axis=1, keepdims=True)), A)

    start = best(n, bands).strategy.columns[inside]
    solved = minimize(
        lambda x: x[-1],
        np.append(start, 10.0),
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda x: x[-1] - variances(x)}],
        options={"maxiter": 500, "ftol": 1e-12},
    )
    found = best(n, bands, objective="max")
    assert solved.success
    assert found.loss == pytest.approx(math.sqrt(solved.fun), rel=1e-4)
    assert found.loss < error(best(n, bands).strategy, ap.PrefixSum()).max


def test_without_equal_norms():
    """Each residue class keeps its sum, the loss falls, and the optimum over all matrices stays below."""
    epochs = ap.FixedEpochs(2, 4)
    equal, free = best(8, 4, epochs), best(8, 4, epochs, equal_norms=False)
    squares = (free.strategy.columns**2).sum(axis=1)
    np.testing.assert_allclose(squares[:4] + squares[4:], 2.0, rtol=1e-12)
    assert squares.max() > 1.05
    assert ap.sensitivity(free.strategy, epochs).value == pytest.approx(math.sqrt(2), rel=1e-12)
    assert 36.8738679 <= free.loss**2 * 8 < 0.98 * equal.loss**2 * 8
    assert free.lower_bound == pytest.approx(free.loss, rel=1e-5)
    rng = np.random.default_rng(1)
    for _ in range(50):
        other = free.strategy.columns * (1 + 0.1 * rng.normal(size=(8, 4)))
        assert loss(Banded(other), ap.PrefixSum(), epochs) >= free.loss * (1 - 1e-10)


def test_without_equal_norms_and_a_cut_epoch():
    epochs = ap.FixedEpochs(3, 4)
    equal, free = best(10, 3, epochs), best(10, 3, epochs, equal_norms=False)
    assert free.lower_bound <= free.loss < equal.loss
    assert free.loss == pytest.approx(loss(free.strategy, ap.PrefixSum(), epochs), rel=1e-12)


def test_single_participation_has_equal_norms_at_the_optimum():
    assert best(20, 5, equal_norms=False).loss == pytest.approx(best(20, 5).loss, rel=1e-12)


@pytest.mark.parametrize(
    "participation", [ap.MinSeparation(8), ap.FixedEpochs(4, 8), ap.BallsInBins(4, 8), ap.CyclicPoisson(8, 0.5)]
)
def test_one_problem_for_every_participation(participation):
    """With unit columns and bands <= separation the best C is the same, and the loss grows as sqrt(k)."""
    found, single = best(32, 8, participation), best(32, 8)
    assert found.loss == pytest.approx(2.0 * single.loss, rel=1e-8)
    np.testing.assert_allclose(found.strategy.columns, single.strategy.columns, atol=1e-4)


def test_the_same_on_every_run_and_limits():
    first, second = best(300, 8), best(300, 8)
    assert np.array_equal(first.strategy.columns, second.strategy.columns)
    told = []
    stopped = best(300, 8, max_iterations=3, progress=lambda i, value: told.append((i, value)))
    assert [i for i, _ in told] == [1, 2, 3]
    assert not stopped.converged
    assert stopped.iterations == 3
    assert stopped.loss == pytest.approx(told[-1][1], rel=1e-9)
    assert stopped.lower_bound <= first.loss < stopped.loss
    assert not best(300, 8, time_limit=0.0).converged


def test_small_sizes():
    assert best(1, 1).loss == pytest.approx(1.0)
    assert best(5, 1).loss == pytest.approx(math.sqrt(3.0))
    assert optimize("banded", steps=5, participation=ap.EveryStep()).strategy.bands == 1


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"bands": 5, "participation": ap.MinSeparation(4)}, ap.InvalidArgument, "bands <= separation"),
        ({"bands": 9}, ap.InvalidArgument, "at most 8"),
        ({"participation": ap.MinSeparation(4), "equal_norms": False}, ap.InvalidArgument, "fixed epochs"),
        ({"participation": ap.ShuffledEpochs(2, 4)}, ap.NotProved, "ShuffledEpochs"),
        ({"column_normalized": True}, ap.InvalidArgument, "no option"),
    ],
)
def test_bad_arguments_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        optimize("banded", **{"steps": 8, "participation": SINGLE, **options})


# Table 2 of Choquette-Choo et al. 2023 (amplified banded), for n = 2052. Strategies are scaled to sensitivity 1 under
# fixed epochs. The columns are: bands; equal norms; sensitivity for k = 1; sensitivity under minimum separation; losses
# under fixed epochs and under minimum separation, relative to the loss of the dense optimum (parts A and B).
OPTIMUM = 8.15
TABLE_2 = [
    (1, True, 0.41, 1.00, 9.63, 9.63),
    (128, False, 0.52, 1.04, 1.23, 1.29),
    (128, True, 0.41, 1.00, 1.27, 1.27),
    (342, False, 0.52, 1.04, 1.04, 1.08),
    (342, True, 0.41, 1.00, 1.05, 1.05),
]


@pytest.mark.slow
@pytest.mark.parametrize(("bands", "equal", "single", "separated", "a", "b"), TABLE_2)
def test_table_2(bands, equal, single, separated, a, b):
    epochs, n = ap.FixedEpochs(6, 342), 2052
    found = best(n, bands, epochs, equal_norms=equal, max_iterations=150)
    scale = ap.sensitivity(found.strategy, epochs).value
    assert ap.sensitivity(found.strategy, SINGLE).value / scale == pytest.approx(single, abs=0.005)
    separation = ap.sensitivity(found.strategy, ap.MinSeparation(342)).value / scale
    assert separation == pytest.approx(separated, abs=0.005)
    assert found.loss / OPTIMUM == pytest.approx(a, abs=0.006)
    assert found.loss * separation / OPTIMUM == pytest.approx(b, abs=0.006)
