"""Optimised BLTs: closed forms against brute force, gradients, published values, valid decays, and limits."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._errors import InvalidArgument, NotEnoughMemory, NotProved
from antiphase._loss import loss
from antiphase._optimize import optimize
from antiphase._optimize.blt import _starts, blt_at
from antiphase._optimize.blt_decays import MAX_LOGIT, clipped, decays, to_logits, to_points
from antiphase._optimize.blt_error import GeometricSums, PrefixSumSquaredError, ToeplitzSquaredError
from antiphase._optimize.blt_loss import BLTSquaredSensitivity, ClosedLoss, StepwiseLoss
from antiphase._optimize.lower_bound import _nuclear_norm, prefix_sum_bound
from antiphase._optimize.newton import newton_minimize
from antiphase._optimize.participation_limits import ParticipationLimits, worst_case_limits
from antiphase._optimize.solution import SearchLimits
from antiphase._sensitivity import sensitivity
from antiphase.strategies import BLT, Toeplitz
from tests.catalog import every_workload
from tests.optimize.gradients import check_gradient, dense_error, worst_pattern

SINGLE = ap.SingleParticipation()
OBJECTIVES = ("rms", "max")
WORKLOADS = [name for name, _ in every_workload(3)]
TOEPLITZ = [name for name, workload in every_workload(3) if workload.toeplitz_inverse is not None]


def best(steps, participation=SINGLE, **options):
    return optimize("blt", steps=steps, participation=participation, **options)


def random_points(seed, buffers, spread=2.0):
    """Return coordinates of one BLT with interlaced decays, of which the last one may be negative."""
    rng = np.random.default_rng(seed)
    logits = np.sort(spread * rng.normal(size=(1, 2 * buffers)))[:, ::-1] - 0.05 * np.arange(2 * buffers)
    points = to_points(logits)
    points[0, -1] += rng.normal()
    return points


@given(
    rate=st.floats(0, 5) | st.floats(-18, 0).map(lambda x: 10.0**x) | st.just(math.inf),
    count=st.integers(0, 120),
    negative=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_geometric_sums_are_exact(rate, count, negative):
    ratio = -math.exp(-rate) if negative else math.exp(-rate)
    x = Fraction(ratio)
    plain, slope, second = (float(s[0]) for s in GeometricSums(count)(np.array([ratio]), np.array([rate])))
    assert plain == pytest.approx(float(sum(x**i for i in range(count))), rel=1e-11, abs=1e-13)
    assert slope == pytest.approx(float(sum(i * x ** (i - 1) for i in range(1, count))), rel=1e-11, abs=1e-11)
    assert second == pytest.approx(float(sum(i * i * x ** (i - 1) for i in range(1, count))), rel=1e-11, abs=1e-9)


def test_geometric_sums_of_very_many_terms():
    n = 10**8
    sums = GeometricSums(n)
    assert [float(p[0]) for p in sums(np.ones(1), np.zeros(1))] == pytest.approx([n, n**2 / 2, n**3 / 3], rel=1e-7)
    rates = [np.array([0.05 / n * (1 + sign * 1e-9)]) for sign in (-1, 1)]
    below, above = (sums(np.exp(-rate), rate) for rate in rates)
    for series, closed in zip(below, above, strict=True):
        assert series[0] == pytest.approx(closed[0], rel=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_scales_are_those_of_theblt_at(seed):
    found = decays(random_points(seed, 3))
    expected = BLT.from_decays(found.value[0, 0::2], found.value[0, 1::2], 5)
    np.testing.assert_allclose(np.exp(found.log_scale[0, 0::2]), expected.scale, rtol=1e-12)
    np.testing.assert_allclose(found.value[0, 1::2], expected.inverse_decays(), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(found.rest, 1 - found.value, rtol=1e-12)


def test_logits_and_points_agree():
    logits = np.array([[5.0, 3.0, 1.0, -1.0], [36.0, 2.0, 1.9, -3.0]])
    np.testing.assert_allclose(decays(to_points(logits)).value, 1 / (1 + np.exp(-logits)), rtol=1e-12)
    np.testing.assert_allclose(to_logits(to_points(logits))[0], logits[0], rtol=1e-9)


@given(seed=st.integers(0, 10**6), buffers=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_every_point_is_feasible(seed, buffers):
    points = clipped(10 * np.random.default_rng(seed).normal(size=(1, 2 * buffers)))
    c = blt_at(points[0], 30).coefficients()
    assert (c >= 0).all()
    assert (np.diff(c) <= 1e-15).all()


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 12),
    separation=st.integers(1, 12),
    count=st.none() | st.integers(1, 4),
    buffers=st.integers(1, 3),
    name=st.sampled_from(WORKLOADS),
    objective=st.sampled_from(OBJECTIVES),
)
@settings(max_examples=60, deadline=None)
def test_loss_is_that_of_brute_force(seed, n, separation, count, buffers, name, objective):
    workload, participation = dict(every_workload(n, seed))[name], ap.MinSeparation(separation, count)
    points = random_points(seed, buffers)
    C = blt_at(points[0], n).encoder()
    expected = worst_pattern(C, participation) * dense_error(C, workload.matrix(n), objective)
    allowed = worst_case_limits("test", participation, n)
    if workload.toeplitz_inverse is not None:
        closed = ClosedLoss(n, allowed, workload.toeplitz_inverse, objective)
        assert math.exp(closed(points)[0][0]) == pytest.approx(expected, rel=1e-9)
    square = BLTSquaredSensitivity(n, allowed.separation, allowed.count)
    stepwise = StepwiseLoss(n, square, workload, 1.0 if objective == "rms" else 1e7)
    assert math.exp(stepwise(points[0], np.empty_like(points[0]))) == pytest.approx(expected, rel=1e-6)


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 5000),
    separation=st.integers(1, 400),
    buffers=st.integers(1, 4),
    name=st.sampled_from(TOEPLITZ),
    objective=st.sampled_from(OBJECTIVES),
)
@settings(max_examples=60, deadline=None)
def test_gradient_of_the_closed_loss(seed, n, separation, buffers, name, objective):
    workload = dict(every_workload(n))[name]
    allowed = worst_case_limits("test", ap.MinSeparation(separation, 9), n)
    closed = ClosedLoss(n, allowed, workload.toeplitz_inverse, objective)

    def function(x, gradient):
        values, gradients = closed(x[None])
        gradient[:] = gradients[0]
        return values[0]

    check_gradient(function, random_points(seed, buffers)[0], rtol=3e-5)


@given(seed=st.integers(0, 10**6), n=st.integers(2, 60), buffers=st.integers(1, 3), power=st.sampled_from([1.0, 8.0]))
@settings(max_examples=25, deadline=None)
def test_gradient_of_the_stepwise_loss(seed, n, buffers, power):
    workload = dict(every_workload(n, seed))["schedule"]
    allowed = worst_case_limits("test", ap.MinSeparation(5), n)
    square = BLTSquaredSensitivity(n, allowed.separation, allowed.count)
    function = StepwiseLoss(n, square, workload, power)
    check_gradient(function, random_points(seed, buffers)[0], rtol=3e-5)


def test_a_decay_next_to_one_loses_nothing():
    # In the limit theta_1 = 1 the loss is that of BLT with decay 1 exactly.
    points = to_points(np.array([[MAX_LOGIT, 7.0, 4.0, 1.0]]))
    strategy = blt_at(points[0], 3000)
    assert strategy.decay[0] == pytest.approx(1.0, abs=1e-15)
    for objective in OBJECTIVES:
        value = ClosedLoss(3000, ParticipationLimits(500, 6), np.array([1.0, -1.0]), objective)(points)[0][0]
        assert math.exp(value) == pytest.approx(
            loss(strategy, ap.PrefixSum(), ap.MinSeparation(500), objective), rel=1e-9
        )


def test_prefix_sum_and_general_formula_agree_at_many_steps():
    found = decays(to_points(np.array([[17.0, 12.0, 6.0, 2.0], [9.0, 3.0, 1.0, -2.0]])))
    for objective in OBJECTIVES:
        closed = PrefixSumSquaredError(10**8, objective)(found)
        doubled = ToeplitzSquaredError(10**8, objective, np.array([1.0, -1.0]))(found)
        np.testing.assert_allclose(doubled[0], closed[0], rtol=1e-8)
        np.testing.assert_allclose(doubled[1], closed[1], rtol=1e-6, atol=1e-7 * np.abs(closed[1]).max())


def test_published_reference_values():
    two = best(2052, ap.MinSeparation(342, 6), objective="max", buffers=2)
    assert two.loss == pytest.approx(10.806, abs=5e-4)
    assert loss(two.strategy, ap.PrefixSum(), ap.MinSeparation(342, 6)) == pytest.approx(9.343, abs=5e-4)
    assert best(10**5, objective="max", buffers=2).loss == pytest.approx(5.29675, abs=5e-6)


@pytest.mark.parametrize(
    ("buffers", "participation", "largest", "rms"),
    [
        (2, SINGLE, 11.80, 11.15),
        (5, SINGLE, 11.40, 10.87),
        (2, ap.MinSeparation(342, 6), 10.81, 9.34),
        (3, ap.MinSeparation(342, 6), 10.79, 9.33),
        (4, ap.MinSeparation(342, 6), 10.79, 9.33),
        (5, ap.MinSeparation(342, 6), 10.79, 9.33),
    ],
)
def test_published_table_1(buffers, participation, largest, rms):
    # Optimised for one participation or six, measured at six. The published optima with three buffers and more
    # are local ones (10.788); the best have a decay of 1.
    measured = ap.MinSeparation(342, 6)
    solution = best(2052, participation, objective="max", buffers=buffers)
    value = loss(solution.strategy, ap.PrefixSum(), measured, "max")
    if buffers > 2 and participation is not SINGLE:
        assert value < largest - 0.03
        assert solution.strategy.decay[0] == pytest.approx(1.0, abs=1e-12)
    else:
        assert value == pytest.approx(largest, abs=0.0051)
        assert loss(solution.strategy, ap.PrefixSum(), measured, "rms") == pytest.approx(rms, abs=0.0051)


def test_the_published_local_optimum_is_one():
    closed = ClosedLoss(2052, ParticipationLimits(342, 6), np.array([1.0, -1.0]), "max")
    starts = to_points(np.array([[5.1, 3.3, 2.0, 1.0, -0.1, -1.7]]))
    value = math.exp(newton_minimize(closed, starts, clipped, SearchLimits())[1][0])
    assert value == pytest.approx(10.79, abs=0.0051)
    assert best(2052, ap.MinSeparation(342, 6), objective="max", buffers=3).loss < value - 0.03


def test_several_starts_do_not_get_stuck():
    solution = best(4000, ap.MinSeparation(400, 5), objective="max", buffers=2)
    assert solution.loss == pytest.approx(11.35428, abs=1e-5)


@pytest.mark.parametrize(
    ("steps", "separation", "count", "decay", "scale"),
    [
        (
            2000,
            100,
            10,
            [0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191],
            [0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538],
        ),
        (
            4000,
            400,
            5,
            [0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778],
            [0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734],
        ),
        (
            4000,
            1000,
            2,
            [0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317],
            [0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523],
        ),
    ],
)
def test_never_worse_than_the_production_parameters(steps, separation, count, decay, scale):
    participation = ap.MinSeparation(separation, count)
    published = loss(BLT(decay, scale, steps), ap.PrefixSum(), participation, "max")
    solution = best(steps, participation, objective="max", buffers=4)
    assert solution.loss <= published * (1 + 1e-7)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_enough_buffers_come_close_to_the_best_toeplitz(objective):
    toeplitz = optimize("toeplitz", steps=300, participation=SINGLE, bands=300, objective=objective)
    solution = best(300, objective=objective, buffers=5)
    assert toeplitz.loss * (1 - 1e-6) <= solution.loss <= 1.01 * toeplitz.loss


@pytest.mark.integration
@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    "participation", [SINGLE, ap.EveryStep(), ap.FixedEpochs(4, 6), ap.MinSeparation(5), ap.MinSeparation(4, 2)]
)
def test_every_result_is_feasible(name, participation):
    n = 20
    workload = dict(every_workload(n))[name]
    solution = best(n, participation, workload=workload, buffers=2)
    c = solution.strategy.coefficients()
    assert (c >= 0).all()
    assert (np.diff(c) <= 1e-15).all()
    bound = sensitivity(solution.strategy, participation)
    assert bound.kind == "exact"
    C = solution.strategy.encoder()
    assert bound.value == pytest.approx(worst_pattern(C, participation), rel=1e-9)
    assert solution.loss == pytest.approx(bound.value * dense_error(C, workload.matrix(n), "rms"), rel=1e-7)
    assert (solution.lower_bound is not None) == (name == "prefix")
    if solution.lower_bound is not None:
        dense = optimize("dense", steps=n, participation=participation)
        assert solution.lower_bound <= dense.loss <= solution.loss * (1 + 1e-9)


def test_more_buffers_are_never_worse():
    losses = [best(500, ap.MinSeparation(100), buffers=d).loss for d in range(1, 5)]
    assert all(b <= a * (1 + 1e-7) for a, b in pairwise(losses))
    chosen = best(500, ap.MinSeparation(100))
    d = chosen.strategy.buffers
    assert chosen.loss == pytest.approx(losses[d - 1], rel=1e-7)
    assert losses[d - 1] / losses[d] < 1.005
    assert d == 1 or losses[d - 2] / losses[d - 1] >= 1.005


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_schedule_is_taken_into_account(objective):
    n = 200
    workload = ap.Momentum(0.9, ap.schedules.linear(n))
    participation = ap.MinSeparation(40)
    solution = best(n, participation, workload=workload, objective=objective, buffers=2)
    plain = best(n, participation, workload=ap.Momentum(0.9), objective=objective, buffers=2)
    assert solution.loss < loss(plain.strategy, workload, participation, objective)
    # A local optimum: no small change of a decay or scale helps.
    rng = np.random.default_rng(0)
    for _ in range(20):
        decay = np.clip(solution.strategy.decay * (1 + 1e-3 * rng.normal(size=2)), 0, 1)
        scale = solution.strategy.scale * (1 + 1e-2 * rng.normal(size=2))
        scale /= max(1.0, scale.sum())
        other = loss(BLT(decay, scale, n), workload, participation, objective)
        assert other >= solution.loss * (1 - (1e-5 if objective == "rms" else 1e-3))


def test_a_hundred_million_steps():
    solution = best(10**8, buffers=3, objective="max")
    assert solution.lower_bound < solution.loss < 1.35 * solution.lower_bound
    assert solution.converged


def test_one_step():
    assert best(1).loss == 1.0


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_lower_bound_is_the_nuclear_norm(n):
    exact = np.linalg.svd(np.tril(np.ones((n, n))), compute_uv=False).sum()
    assert _nuclear_norm(n) == pytest.approx(exact, rel=1e-11)
    assert _nuclear_norm(n) <= exact
    published = (2 + math.log((2 * n + 1) / 3) + math.log(2 * n + 1) / (2 * n)) / math.pi
    assert prefix_sum_bound(n, ParticipationLimits(n, 1)) >= published - 1e-9


def test_lower_bound_of_many_steps_is_below_the_sum(monkeypatch):
    exact = _nuclear_norm(5000)
    monkeypatch.setattr("antiphase._optimize.lower_bound.SUMMED_TERMS", 100)
    assert exact * (1 - 1e-3) < _nuclear_norm(5000) <= exact


@pytest.mark.parametrize(
    "participation", [SINGLE, ap.EveryStep(), ap.FixedEpochs(3, 4), ap.MinSeparation(4), ap.MinSeparation(3, 2)]
)
def test_lower_bound_holds_for_other_strategies(participation):
    bound = prefix_sum_bound(12, worst_case_limits("test", participation, 12))
    rng = np.random.default_rng(0)
    for strategy in (Toeplitz.square_root(12), Toeplitz(rng.random(4), 12), best(12, participation).strategy):
        assert loss(strategy, ap.PrefixSum(), participation) >= bound
    assert optimize("dense", steps=12, participation=participation).loss >= bound


@pytest.mark.parametrize(("buffers", "workload"), [(4, ap.PrefixSum()), (2, ap.Momentum(0.9, ap.schedules.linear(50)))])
def test_limits_return_the_best_so_far(buffers, workload):
    heard = []
    stopped = best(50, buffers=buffers, workload=workload, max_iterations=3, progress=lambda *x: heard.append(x))
    assert not stopped.converged
    assert stopped.iterations == len(heard) == 3
    assert stopped.loss < 50
    full = best(50, buffers=buffers, workload=workload)
    assert full.converged
    assert full.loss <= stopped.loss
    assert not best(50, workload=workload, time_limit=0.0).converged


def test_the_same_result_on_every_run():
    for workload in (ap.PrefixSum(), ap.Momentum(0.9, ap.schedules.linear(60))):
        first, second = (best(60, ap.MinSeparation(20), workload=workload, buffers=2) for _ in range(2))
        assert first.strategy == second.strategy


def test_starts_are_feasible():
    for d, previous in ((1, np.empty(0)), (2, np.array([36.0, 35.9])), (3, np.array([5.0, 3.0, 1.0, -1.0]))):
        for steps in (1, 2, 10**8):
            starts = _starts(steps, min(steps, 100), d, previous)
            assert (np.diff(starts, axis=1) < 0).all()


def test_sensitivity_of_one_participation_in_few_steps():
    value, _, _ = BLTSquaredSensitivity(1, 1, 1)(np.array([[0.5]]), np.array([[0.2]]))
    assert value[0] == 1.0


def test_what_is_refused():
    for buffers in (0, 11, 1.5):
        with pytest.raises(InvalidArgument, match="buffers"):
            best(10, buffers=buffers)
    with pytest.raises(NotEnoughMemory, match="participations"):
        best(10**8, ap.EveryStep())
    with pytest.raises(NotProved, match="ShuffledEpochs"):
        best(4, ap.ShuffledEpochs(2, 2))
