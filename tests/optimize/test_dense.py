"""The dense optimum: published values, lower bounds against brute force, constraints and limits."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import minimize

import antiphase as ap
from antiphase._errors import InvalidArgument, NotEnoughMemory, NotProved
from antiphase._loss import loss
from antiphase._optimize import optimize
from antiphase._optimize.dense.dual import BlockDual, SortedWorkload
from antiphase._optimize.dense.min_separation import MinSeparationProblem
from antiphase._optimize.dense.multipliers import OrthogonalMultipliers, RowWeights
from antiphase._optimize.dense.optimizer import _factor
from antiphase._optimize.dense.residue_blocks import ResidueClasses
from antiphase._sensitivity import sensitivity
from antiphase.strategies import Banded, Dense, Stamped
from tests.catalog import every_workload, random_banded, random_lower
from tests.optimize.gradients import check_gradient, dense_error

SINGLE = ap.SingleParticipation()
MOMENTUM = ap.Momentum(0.95)
WORKLOADS = [name for name, _ in every_workload(3)]


def best(steps, participation=SINGLE, **options):
    return optimize("dense", steps=steps, participation=participation, **options)


@functools.cache
def known(steps, participation, **options):
    return best(steps, participation, **options)


def total(solution, steps):
    """Return ||A C^-1||_F^2 for the solution scaled to sensitivity 1."""
    return solution.loss**2 * steps


def gram(strategy):
    C = strategy.matrix if hasattr(strategy, "matrix") else strategy.encoder()
    return C.T @ C


@pytest.mark.parametrize(
    ("steps", "participation", "value"),
    [
        (2, SINGLE, 2.618034),
        (3, SINGLE, 4.60786165),
        (8, SINGLE, 17.8661773),
        (64, SINGLE, 282.201421),
        (4, ap.FixedEpochs(2, 2), 14.5947750),
        (8, ap.FixedEpochs(2, 4), 36.8738679),
        (16, ap.FixedEpochs(4, 4), 215.573810),
    ],
)
def test_reference_values(steps, participation, value):
    solution = best(steps, participation, tolerance=1e-9)
    assert total(solution, steps) == pytest.approx(value, rel=3e-8)
    assert solution.lower_bound**2 * steps == pytest.approx(value, rel=3e-8)
    assert solution.lower_bound <= solution.loss
    assert solution.converged


@pytest.mark.parametrize(
    ("workload", "constraint", "smallest", "smallest_in_pattern", "error"),
    [
        (ap.PrefixSum(), "scalar", 0.000, 0.000, 6.461),
        (ap.PrefixSum(), "pattern", 0.000, 0.000, 6.461),
        (ap.PrefixSum(), "nonnegative", 0.000, 0.000, 6.461),
        (MOMENTUM, "scalar", -0.031, -0.031, 16.114),
        (MOMENTUM, "pattern", -0.015, 0.000, 16.131),
        (MOMENTUM, "nonnegative", 0.000, 0.000, 16.134),
    ],
)
def test_published_table_6(workload, constraint, smallest, smallest_in_pattern, error):
    solution = best(6, ap.FixedEpochs(3, 2), workload=workload, constraint=constraint, tolerance=1e-7)
    X = gram(solution.strategy)
    pairs = [X[i, j] for i in range(6) for j in range(6) if i != j and (i - j) % 2 == 0]
    assert X.min() == pytest.approx(smallest, abs=5.1e-4)
    assert min(pairs) == pytest.approx(smallest_in_pattern, abs=5.1e-4)
    assert math.sqrt(6) * solution.lower_bound == pytest.approx(error, abs=5.1e-4)
    if constraint != "scalar":
        assert math.sqrt(6) * solution.loss == pytest.approx(error, abs=5.1e-4)


def test_the_scalar_optimum_is_worse_for_vectors_and_refuses_to_train():
    solution = best(6, ap.FixedEpochs(3, 2), workload=MOMENTUM, constraint="scalar")
    optimum = best(6, ap.FixedEpochs(3, 2), workload=MOMENTUM)
    strategy = solution.strategy
    assert solution.lower_bound < optimum.lower_bound < solution.loss
    assert solution.loss == pytest.approx(loss(Dense(strategy.matrix), MOMENTUM, ap.FixedEpochs(3, 2)))
    for use in (
        strategy.noising_stream,
        strategy.encoding_stream,
        strategy.encoder,
        strategy.noising,
        lambda: sensitivity(strategy, ap.FixedEpochs(3, 2)),
        lambda: ap.error(strategy, MOMENTUM),
    ):
        with pytest.raises(NotProved, match="scalar"):
            use()


def test_largest_error_of_two_steps():
    # The gamma_2 norm of [[1, 0], [1, 1]] is 2 / sqrt(3).
    solution = best(2, objective="max", tolerance=1e-6)
    assert solution.loss == pytest.approx(2 / math.sqrt(3), rel=2e-6)
    assert solution.lower_bound == pytest.approx(2 / math.sqrt(3), rel=2e-6)


def test_fixed_point_of_corollary_3_1():
    n = 8
    A = np.tril(np.ones((n, n)))
    v = np.ones(n)
    for _ in range(200):
        root = np.diag(np.sqrt(v))
        v = np.diag(sqrtm(root @ A.T @ A @ root).real)
    assert v.sum() == pytest.approx(total(best(n, tolerance=1e-9), n), rel=1e-8)


def test_against_a_general_solver():
    # (k, b) = (2, 2) with momentum: X over its free entries, diagonal of each class summing to 1.
    n, workload = 4, ap.Momentum(0.7)
    V = workload.matrix(n).T @ workload.matrix(n)

    def square(p):
        d, e = 1 / (1 + np.exp(-p[:2]))
        X = np.diag([d, e, 1 - d, 1 - e])
        for value, (i, j) in zip(p[2:], [(0, 1), (1, 2), (2, 3), (0, 3)], strict=True):
            X[i, j] = X[j, i] = value
        if np.linalg.eigvalsh(X)[0] <= 1e-9:
            return 1e6
        return np.trace(V @ np.linalg.inv(X))

    p = np.zeros(6)
    for _ in range(4):
        p = minimize(square, p, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 20000}).x
    assert total(best(n, ap.FixedEpochs(2, 2), workload=workload, tolerance=1e-8), n) == pytest.approx(square(p), 1e-6)


@pytest.mark.parametrize("objective", ["rms", "max"])
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("participation", [SINGLE, ap.EveryStep(), ap.FixedEpochs(3, 4), ap.FixedEpochs(4, 3)])
def test_every_workload_has_a_certificate(name, participation, objective):
    n = 11
    workload = dict(every_workload(n))[name]
    solution = best(n, participation, workload=workload, objective=objective)
    C = solution.strategy.matrix
    assert solution.loss == pytest.approx(
        sensitivity(solution.strategy, participation).value * dense_error(C, workload.matrix(n), objective)
    )
    assert solution.lower_bound <= solution.loss <= solution.lower_bound * 1.003
    assert sensitivity(solution.strategy, participation).value == pytest.approx(1.0, abs=1e-9)


@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(WORKLOADS),
    participation=st.sampled_from([SINGLE, ap.FixedEpochs(2, 3), ap.FixedEpochs(3, 2), ap.EveryStep()]),
    objective=st.sampled_from(["rms", "max"]),
    close=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_no_matrix_beats_the_lower_bound(seed, name, participation, objective, close):
    n, rng = 6, np.random.default_rng(seed)
    workload = dict(every_workload(n))[name]
    solution = known(n, participation, workload=workload, objective=objective)
    other = random_lower(rng, n)
    if close:
        other = Dense(solution.strategy.matrix * (1 + 10 ** -rng.uniform(1, 6) * rng.normal(size=(n, n))))
    assert loss(other, workload, participation, objective) >= solution.lower_bound * (1 - 1e-9)


@given(seed=st.integers(0, 10**6), equal=st.booleans(), count=st.sampled_from([None, 2]))
@settings(max_examples=40, deadline=None)
def test_no_banded_matrix_beats_the_lower_bound(seed, equal, count):
    n, participation, rng = 9, ap.MinSeparation(3, count), np.random.default_rng(seed)
    solution = known(n, participation, equal_norms=equal, tolerance=1e-6)
    noise = rng.normal(size=(n, 3)) * 10 ** -rng.uniform(0, 5)
    columns = solution.strategy.columns * (1 + noise)
    if equal:
        columns /= np.sqrt((columns**2).sum(axis=1, keepdims=True))
    other = Banded(columns) if rng.random() < 0.7 or equal else random_banded(rng, n, 3, signed=True)
    assert loss(other, ap.PrefixSum(), participation) >= solution.lower_bound * (1 - 1e-9)


def test_dual_value_is_that_of_theorem_3_1():
    n, b, rng = 6, 2, np.random.default_rng(3)
    workload, classes = ap.Momentum(0.5), ResidueClasses(6, 2)
    classed = SortedWorkload(workload.matrix(n), workload.inverse_bands(n), classes)
    multipliers = OrthogonalMultipliers(classes, equal_norms=False, floor=0.0)
    logs = rng.normal(size=(b, 3, 3))
    point = (logs + logs.swapaxes(1, 2)).ravel()
    found = BlockDual(classed, multipliers, RowWeights(n, "rms", 0.0))(point)
    U = np.zeros((n, n))
    for r, block in enumerate(multipliers.blocks(point)[0]):
        U[r::b, r::b] = block
        assert np.diag(block) == pytest.approx(block[0, 0])
    root = sqrtm(U).real
    V = workload.matrix(n).T @ workload.matrix(n) / n
    trace = np.trace(sqrtm(root @ V @ root)).real
    assert found.bound == pytest.approx(trace**2 / (U[0, 0] + U[1, 1]), rel=1e-9)


@given(seed=st.integers(0, 10**6), steps=st.integers(4, 9), period=st.integers(1, 4), equal=st.booleans())
@settings(max_examples=25, deadline=None)
def test_primal_point_of_any_multiplier_is_feasible(seed, steps, period, equal):
    rng, workload, classes = np.random.default_rng(seed), ap.Momentum(0.5), ResidueClasses(steps, period)
    classed = SortedWorkload(workload.matrix(steps), workload.inverse_bands(steps), classes)
    dual = BlockDual(classed, OrthogonalMultipliers(classes, equal, 1e-6), RowWeights(steps, "max", 1e-6))
    logs = [rng.normal(size=block.shape) for block in classes.identity()]
    point = np.concatenate([*((x + x.swapaxes(1, 2)).ravel() for x in logs), rng.normal(size=steps)])
    found = dual(point)
    X = found.gram()
    for r in range(min(period, steps)):
        block = X[r::period, r::period]
        np.testing.assert_allclose(block, np.diag(np.diag(block)), atol=1e-10)
        assert np.trace(block) <= 1 + 1e-9
    assert found.bound <= found.square * (1 + 1e-9)
    A = workload.matrix(steps)
    assert found.square == pytest.approx((A @ np.linalg.inv(X) @ A.T).diagonal().max(), rel=1e-8)
    if equal:
        assert np.diag(X) == pytest.approx(1 / classes.largest)


def test_factor_is_the_right_way_round():
    rng = np.random.default_rng(0)
    C = random_lower(rng, 7).matrix
    X = C.T @ C
    found = _factor(X)
    np.testing.assert_allclose(found.T @ found, X, atol=1e-12)
    np.testing.assert_allclose(found, C, atol=1e-10)
    plain = np.linalg.cholesky(X)
    assert np.abs(plain.T @ plain - X).max() > 0.1


def test_columns_of_a_class_are_orthogonal_and_sum_to_one():
    X = gram(best(12, ap.FixedEpochs(3, 4), workload=MOMENTUM).strategy)
    for r in range(4):
        block = X[r::4, r::4]
        np.testing.assert_allclose(block, np.diag(np.diag(block)), atol=1e-12)
        assert np.trace(block) == pytest.approx(1.0)


def test_equal_norms_cost_a_little():
    free, equal = best(24, ap.FixedEpochs(4, 6)), best(24, ap.FixedEpochs(4, 6), equal_norms=True)
    assert np.diag(gram(equal.strategy)) == pytest.approx(0.25)
    assert free.loss < equal.lower_bound <= equal.loss < 1.05 * free.loss


def test_single_participation_has_equal_norms_anyway():
    assert best(12).loss == pytest.approx(best(12, equal_norms=True).loss, rel=2e-4)


def test_truncated_epochs():
    # 10 of 12 steps: two classes of 3 steps, two of 2; more freedom than 3 full classes of 12 steps.
    solution = best(10, ap.FixedEpochs(3, 4))
    assert solution.lower_bound <= solution.loss <= solution.lower_bound * 1.0001
    X = gram(solution.strategy)
    assert [np.trace(X[r::4, r::4]) for r in range(4)] == pytest.approx([1.0] * 4)


@pytest.mark.parametrize(("steps", "separation", "square"), [(16, 4, 57.9361836), (64, 8, 439.494988)])
def test_minimum_separation_with_equal_norms_is_the_banded_problem(steps, separation, square):
    solution = best(steps, ap.MinSeparation(separation), equal_norms=True, tolerance=1e-8)
    k = -(-steps // separation)
    assert total(solution, steps) == pytest.approx(k * square, rel=1e-7)
    assert solution.lower_bound == pytest.approx(solution.loss, rel=1e-7)
    assert solution.strategy.bands == separation


def test_minimum_separation_without_equal_norms_lies_between():
    free = best(24, ap.MinSeparation(6))
    equal = best(24, ap.MinSeparation(6), equal_norms=True)
    epochs = best(24, ap.FixedEpochs(4, 6))
    assert epochs.lower_bound < free.lower_bound <= free.loss < equal.lower_bound
    assert free.loss <= free.lower_bound * 1.0001
    assert sensitivity(free.strategy, ap.MinSeparation(6)).kind == "exact"


def test_separation_of_all_steps_is_single_participation():
    assert best(10, ap.MinSeparation(10)).loss == pytest.approx(best(10).loss)
    assert best(10, ap.MinSeparation(3, 1)).loss == pytest.approx(best(10).loss)


@pytest.mark.parametrize("equal", [False, True])
def test_minimum_separation_for_the_largest_error(equal):
    solution = best(20, ap.MinSeparation(5), objective="max", equal_norms=equal, workload=ap.Momentum(0.9))
    assert solution.lower_bound <= solution.loss <= solution.lower_bound * 1.003


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 8),
    separation=st.integers(1, 8),
    equal=st.booleans(),
    k=st.integers(1, 8),
)
@settings(max_examples=15, deadline=None)
def test_gradient_under_minimum_separation(seed, n, separation, equal, k):
    rng, b = np.random.default_rng(seed), min(separation, n)
    workload = ap.Momentum(0.5, rng.random(n) + 0.5)
    problem = MinSeparationProblem(n, b, min(k, -(-n // b)), workload, equal)
    point = problem.start()
    point = point * (1 + 0.3 * rng.normal(size=len(point)))
    check_gradient(lambda x, g: problem.value(x, g, 4.0), point)


def test_random_participations_count_as_their_worst_case():
    assert best(12, ap.BallsInBins(3, 4)).loss == best(12, ap.FixedEpochs(3, 4)).loss
    assert best(12, ap.CyclicPoisson(4, 0.1)).loss == best(12, ap.MinSeparation(4)).loss


def test_limits_return_the_best_so_far():
    heard = []
    stopped = best(40, ap.FixedEpochs(4, 10), max_iterations=2, tolerance=1e-9, progress=lambda *x: heard.append(x))
    full = best(40, ap.FixedEpochs(4, 10), tolerance=1e-9)
    assert not stopped.converged
    assert stopped.iterations == 2
    assert [i for i, _ in heard] == [1, 2]
    assert stopped.lower_bound < full.lower_bound <= full.loss < stopped.loss
    assert heard[-1][1] == pytest.approx(stopped.loss)
    assert not best(40, ap.MinSeparation(10), max_iterations=2).converged
    assert not best(40, ap.FixedEpochs(4, 10), time_limit=0.0, tolerance=1e-9).converged


@pytest.mark.parametrize("participation", [ap.FixedEpochs(4, 6), ap.MinSeparation(6)])
def test_the_same_result_on_every_run(participation):
    assert best(24, participation).strategy == best(24, participation).strategy


def test_what_is_refused():
    with pytest.raises(NotEnoughMemory, match="8192"):
        best(10_000)
    with pytest.raises(InvalidArgument, match="constraint"):
        best(4, constraint="none")
    with pytest.raises(InvalidArgument, match="fixed epochs only"):
        best(4, ap.MinSeparation(2), constraint="nonnegative")
    with pytest.raises(InvalidArgument, match="equal_norms"):
        best(4, ap.FixedEpochs(2, 2), constraint="scalar", equal_norms=True)
    with pytest.raises(NotEnoughMemory, match="signs"):
        best(60, ap.EveryStep(), constraint="scalar")
    with pytest.raises(InvalidArgument, match="tolerance"):
        best(4, tolerance=0.0)
    with pytest.raises(NotProved, match="ShuffledEpochs"):
        best(4, ap.ShuffledEpochs(2, 2))


@pytest.mark.parametrize(
    ("epochs", "steps", "repeats", "square"),
    [
        (1, 100, 20, 2.5e6),
        (1, 200, 10, 1.8e6),
        pytest.param(5, 500, 4, 1.2e6, marks=pytest.mark.slow),
        pytest.param(1, 400, 5, 1.5e6, marks=pytest.mark.slow),
        pytest.param(1, 500, 4, 1.4e6, marks=pytest.mark.slow),
        pytest.param(20, 2000, 1, 6.5e5, marks=pytest.mark.slow),
        pytest.param(10, 1000, 2, 8.8e5, marks=pytest.mark.slow),
        pytest.param(1, 2000, 1, 1.6e6, marks=pytest.mark.slow),
        pytest.param(1, 1000, 2, 1.37e6, marks=pytest.mark.slow),
    ],
)
def test_published_table_1(epochs, steps, repeats, square):
    participation = ap.FixedEpochs(epochs, 100) if epochs > 1 else SINGLE
    solution = best(steps, participation, tolerance=1e-5 if epochs == 1 else 1e-3)
    stamped = Stamped(solution.strategy, repeats) if repeats > 1 else solution.strategy
    value = 2000 * loss(stamped, ap.PrefixSum(), ap.FixedEpochs(20, 100)) ** 2
    digits = 2 if square == 1.37e6 else 1  # after the first, as printed
    assert value == pytest.approx(square, abs=0.51 * 10 ** (math.floor(math.log10(square)) - digits))
    if repeats == 1 and epochs == 20:
        assert 2000 * solution.lower_bound**2 == pytest.approx(6.53e5, rel=2e-3)
        assert solution.loss / solution.lower_bound < 1.002


@pytest.mark.slow
def test_published_comparison_with_equal_norms():
    # Amplified banded, Table 2: the dense rows, relative to the optimum of about 8.15.
    participation, n = ap.FixedEpochs(6, 342), 2052
    free, equal = (best(n, participation, equal_norms=norms, tolerance=1e-3) for norms in (False, True))
    assert free.loss == pytest.approx(8.15, abs=0.01)
    assert free.loss / free.lower_bound < 1.001
    assert equal.loss / free.loss == pytest.approx(1.01, abs=0.005)
    for solution, single, separated, error in ((free, 0.50, 1.15, 1.15), (equal, 0.41, 1.13, 1.14)):
        assert sensitivity(solution.strategy, participation).value == pytest.approx(1.0, abs=1e-9)
        assert sensitivity(solution.strategy, SINGLE).value == pytest.approx(single, abs=0.0051)
        bound = sensitivity(solution.strategy, ap.MinSeparation(342))
        assert bound.kind == "upper"
        assert bound.value == pytest.approx(separated, abs=0.0051)
        assert solution.loss * bound.value / free.loss == pytest.approx(error, abs=0.0051)


@pytest.mark.slow
def test_published_comparison_under_minimum_separation():
    # Amplified banded, Table 2: 342 bands, equal norms.
    solution = best(2052, ap.MinSeparation(342), equal_norms=True, tolerance=1e-3)
    assert solution.loss / 8.152 == pytest.approx(1.05, abs=0.005)
    assert solution.loss / solution.lower_bound < 1.001
