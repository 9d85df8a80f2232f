"""Accounting against integrals, a trusted library and the laws it must obey."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import log_ndtr
from scipy.stats import norm

import antiphase as ap
from antiphase.strategies import BLT, Banded, Dense, Fourier, Identity, Stamped, Toeplitz, Tree

ONE = Identity(1)


def gaussian(multiplier):
    return ap.Mechanism(ONE, ap.EveryStep(), multiplier)


def poisson(multiplier, rate, steps, **options):
    return ap.Mechanism(Identity(steps), ap.Poisson(rate), multiplier, **options)


@pytest.mark.parametrize("multiplier", [0.2, 0.7, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 4.0])
def test_gaussian_delta_is_the_integral_of_the_divergence(multiplier, epsilon):
    mu = 1 / multiplier
    edge = epsilon / mu + mu / 2  # where the densities of N(mu, 1) and e^epsilon N(0, 1) cross
    truth, _ = quad(lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), edge, edge + 40, epsabs=0, limit=200)
    found = ap.delta(gaussian(multiplier), epsilon)
    assert found.kind == "exact"
    assert math.isclose(found.value, truth, rel_tol=1e-6, abs_tol=1e-280)
    assert found.value >= truth * (1 - 1e-9)


@given(st.floats(-2, 3), st.floats(-290, -0.5))
@settings(max_examples=60, deadline=None)
def test_gaussian_epsilon_is_safe_and_tight_for_any_delta(log_multiplier, log_delta):
    multiplier, delta = 10**log_multiplier, 10**log_delta
    found = ap.epsilon(gaussian(multiplier), delta).value
    mu = 1 / multiplier

    def log_delta_at(epsilon):
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        first, second = float(log_ndtr(-a)), epsilon + float(log_ndtr(-b))
        return first + math.log(-math.expm1(second - first)) if second < first else -math.inf

    assert log_delta_at(found * (1 + 1e-9) + 1e-300) <= math.log(delta) + 1e-6
    if found > 1e-6 * mu:
        assert log_delta_at(found * 0.999) >= math.log(delta) - 1e-6


def divergence(mu, rate, epsilon, direction):
    """The hockey-stick divergence of one Poisson-sampled Gaussian step, by integration."""

    def mixture(x):
        return (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu)

    p, q = (mixture, norm.pdf) if direction == "remove" else (norm.pdf, mixture)
    x = np.linspace(-14, 14 + mu, 1_400_001)
    return float(np.trapezoid(np.maximum(p(x) - math.exp(epsilon) * q(x), 0.0), x))


@pytest.mark.parametrize(("multiplier", "rate"), [(0.6, 0.02), (1.0, 0.1), (2.0, 0.5)])
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0])
def test_one_sampled_step_is_the_integral_of_the_divergence(multiplier, rate, epsilon):
    truth = max(divergence(1 / multiplier, rate, epsilon, d) for d in ("remove", "add"))
    found = ap.delta(poisson(multiplier, rate, 1), epsilon)
    assert found.kind == "upper"
    assert found.value >= truth * (1 - 1e-6)
    assert found.value <= truth * 1.01 + 1e-9


@pytest.mark.parametrize("epsilon", [0.2, 0.8])
def test_two_sampled_steps_by_integration_in_the_plane(epsilon):
    multiplier, rate = 1.0, 0.2
    x = np.linspace(-8, 9, 3401)
    mixture = (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - 1 / multiplier)
    p, q = np.outer(mixture, mixture), np.outer(norm.pdf(x), norm.pdf(x))
    cell = (x[1] - x[0]) ** 2
    truth = max(np.maximum(a - math.exp(epsilon) * b, 0).sum() * cell for a, b in ((p, q), (q, p)))
    found = ap.delta(poisson(multiplier, rate, 2), epsilon).value
    assert truth * (1 - 1e-4) <= found <= truth * 1.01


@pytest.mark.parametrize(
    ("multiplier", "rate", "steps", "delta"),
    [
        (0.8, 0.01, 500, 1e-6),
        (1.0, 0.05, 200, 1e-5),
        (3.0, 0.2, 1000, 1e-6),
        pytest.param(0.5, 0.001, 2000, 1e-7, marks=pytest.mark.integration),
    ],
)
def test_dp_accounting_agrees(multiplier, rate, steps, delta):
    from dp_accounting.pld import privacy_loss_distribution as pld

    def theirs(pessimistic):
        one = pld.from_gaussian_mechanism(
            multiplier, sampling_prob=rate, value_discretization_interval=1e-4, pessimistic_estimate=pessimistic
        )
        return one.self_compose(steps).get_epsilon_for_delta(delta)

    ours = ap.epsilon(poisson(multiplier, rate, steps), delta).value
    assert theirs(False) * (1 - 1e-6) <= ours
    assert math.isclose(ours, theirs(True), rel_tol=1e-3)


def test_tiny_deltas_stay_finite_and_monotone():
    mechanism = poisson(0.8, 0.01, 2000)
    values = [ap.epsilon(mechanism, 10.0**-e).value for e in (6, 8, 10, 12, 14, 15, 16, 20)]
    assert all(a < b < 1.6 * a for a, b in itertools.pairwise(values))


@given(multiplier=st.floats(0.6, 4), rate=st.floats(0.001, 0.5), steps=st.integers(1, 400), delta=st.floats(1e-9, 1e-3))
@settings(max_examples=12, deadline=None)
def test_epsilon_moves_the_right_way(multiplier, rate, steps, delta):
    base = ap.epsilon(poisson(multiplier, rate, steps), delta).value
    slack = 1 + 2e-4
    assert ap.epsilon(poisson(multiplier * 1.05, rate, steps), delta).value <= base * slack
    assert ap.epsilon(poisson(multiplier, rate * 0.9, steps), delta).value <= base * slack
    assert ap.epsilon(poisson(multiplier, rate, steps + 5), delta).value * slack >= base
    assert ap.epsilon(poisson(multiplier, rate, steps), delta * 1.5).value <= base * slack
    assert base <= ap.epsilon(ap.Mechanism(Identity(steps), ap.EveryStep(), multiplier), delta).value * slack


CALIBRATED = {
    "identity": (Identity(40), ap.FixedEpochs(4, 10), "zero-out"),
    "replace": (Identity(40), ap.FixedEpochs(4, 10), "replace"),
    "blt": (BLT([0.9], [0.2], 40), ap.MinSeparation(10), "zero-out"),
    "poisson": (Identity(40), ap.Poisson(0.1), "add-or-remove"),
    "cyclic": (Toeplitz([1.0, 0.5], 40), ap.CyclicPoisson(4, 0.3), "zero-out"),
}


@pytest.mark.parametrize("case", CALIBRATED)
@pytest.mark.parametrize("epsilon", [0.3, 2.0, 8.0])
def test_calibration_keeps_the_budget_and_wastes_none_of_it(case, epsilon):
    strategy, participation, adjacency = CALIBRATED[case]
    found = ap.calibrate(strategy, participation, ap.Budget(epsilon, 1e-6), adjacency)
    assert 0.999 * epsilon <= found.guarantee.value <= epsilon
    assert ap.epsilon(found.mechanism, 1e-6) == found.guarantee
    less = ap.Mechanism(strategy, participation, found.mechanism.noise_std * 0.99, adjacency)
    assert ap.epsilon(less, 1e-6).value > epsilon  # one percent less noise breaks the budget


def test_composition_of_gaussians_is_exact_and_counts():
    run = gaussian(3.0)
    loop = ap.compose([run] * 9, 1e-6)
    assert math.isclose(loop.value, ap.epsilon(gaussian(1.0), 1e-6).value, rel_tol=1e-9)
    assert loop.kind == "exact"


def test_composing_sampled_runs_equals_one_longer_run():
    parts = ap.compose([poisson(1.0, 0.05, 30)] * 4, 1e-6).value
    whole = ap.epsilon(poisson(1.0, 0.05, 120), 1e-6).value
    assert math.isclose(parts, whole, rel_tol=2e-3)
    assert ap.compose([poisson(1.0, 0.05, 30), gaussian(5.0)], 1e-6).value > ap.epsilon(gaussian(5.0), 1e-6).value


def test_replace_costs_twice_the_sensitivity():
    zero = ap.Mechanism(ONE, ap.EveryStep(), 2.0)
    other = ap.Mechanism(ONE, ap.EveryStep(), 4.0, "replace")
    assert math.isclose(ap.epsilon(zero, 1e-6).value, ap.epsilon(other, 1e-6).value, rel_tol=1e-12)


def test_concentrated_and_gaussian_privacy():
    mechanism = ap.Mechanism(Identity(9), ap.EveryStep(), 6.0)
    assert math.isclose(ap.zcdp(mechanism).value, 1 / 8, rel_tol=1e-12)
    assert math.isclose(ap.gdp(mechanism).value, 0.5, rel_tol=1e-12)
    with pytest.raises(ap.NotProved, match="zcdp"):
        ap.zcdp(poisson(1.0, 0.1, 5))


UNPROVED = {
    "poisson with bands": (Toeplitz([1.0, 0.5], 8), ap.Poisson(0.1), "zero-out"),
    "fewer groups than bands": (Toeplitz([1.0, 0.5, 0.2], 8), ap.CyclicPoisson(2, 0.1), "zero-out"),
    "blt has all bands": (BLT([0.9], [0.1], 8), ap.CyclicPoisson(4, 0.1), "zero-out"),
    "amplified replace": (Identity(8), ap.Poisson(0.1), "replace"),
    "fixed size under zero-out": (Identity(8), ap.FixedSize(1, 4), "zero-out"),
    "moved examples": (Identity(8), ap.ShuffledEpochs(2, 4), "add-or-remove"),
    "fixed epochs that may move others": (Identity(8), ap.FixedEpochs(2, 4), "add-or-remove"),
    "truncated bins": (Identity(8), ap.BallsInBins(2, 4, max_batch=3), "add-or-remove"),
}


@pytest.mark.parametrize("case", UNPROVED)
def test_what_is_not_proved_raises_with_a_hint(case):
    strategy, participation, adjacency = UNPROVED[case]
    bands = "poisson with bands", "fewer groups than bands", "blt has all bands"
    reason = "at most [124] bands" if case in bands else f"{type(participation).__name__}.* under {adjacency} adjacency"
    with pytest.raises(ap.AntiphaseError, match=rf"{reason}(.|\n)*\n\nhint: "):
        ap.epsilon(ap.Mechanism(strategy, participation, 1.0, adjacency, examples=100), 1e-6)


STOPPED = {
    "identity": Identity(12),
    "toeplitz": Toeplitz([1.0, 0.5, 0.2], 12),
    "signed": Toeplitz([1.0, -0.5, 0.2], 12),
    "normalized": Toeplitz([1.0, 0.5, 0.2], 12, column_normalized=True),
    "banded": Banded(Toeplitz([1.0, 0.5, 0.2], 12).columns()),
    "dense": Dense(np.tril(np.random.default_rng(0).normal(size=(12, 12)), -1) + 2 * np.eye(12)),
    "blt": BLT([0.9], [0.2], 12),
    "tree": Tree(12),
    "full tree": Tree(12, "full"),
    "fourier": Fourier(12),
    "stamped": Stamped(Tree(4), 3),
}


@pytest.mark.parametrize("name", STOPPED)
@pytest.mark.parametrize("participation", [ap.MinSeparation(3), ap.EveryStep()])
def test_stopping_never_costs_more_than_going_on_and_covers_the_leading_block(name, participation):
    strategy = STOPPED[name]
    mechanism = ap.Mechanism(strategy, participation, 5.0)
    costs = [ap.epsilon(mechanism.first(t), 1e-6).value for t in range(1, 13)]
    assert all(a <= b * (1 + 1e-9) for a, b in itertools.pairwise(costs))
    assert costs[-1] == ap.epsilon(mechanism, 1e-6).value
    if strategy.rows == 12:
        for t in (1, 5, 11):  # by brute force: the leading block of a lower-triangular C
            block = Dense(strategy.encoder()[:t, :t])
            truth = ap.sensitivity(block, participation)
            if truth.kind == "exact":
                assert costs[t - 1] >= ap.epsilon(gaussian(5.0 / truth.value), 1e-6).value * (1 - 1e-7)


def test_group_privacy_of_gaussians_is_exact():
    assert math.isclose(
        ap.group_epsilon(gaussian(6.0), 3, 1e-6).value, ap.epsilon(gaussian(2.0), 1e-6).value, rel_tol=1e-12
    )


@pytest.mark.parametrize(
    ("bad", "parameter"),
    [
        (lambda: ap.Budget(0.0, 1e-6), "epsilon"),
        (lambda: ap.Budget(-1.0, 1e-6), "epsilon"),
        (lambda: ap.Budget(1.0, 0.0), "delta"),
        (lambda: ap.Budget(1.0, 1.0), "delta"),
        (lambda: ap.Budget(float("nan"), 1e-6), "epsilon"),
        (lambda: ap.Mechanism(ONE, ap.EveryStep(), 0.0), "noise_std"),
        (lambda: ap.Mechanism(ONE, ap.EveryStep(), float("inf")), "noise_std"),
        (lambda: ap.Mechanism(ONE, ap.EveryStep(), 1.0, "swap"), "adjacency"),
        (lambda: ap.epsilon(ap.Mechanism(Identity(9), ap.FixedEpochs(2, 4), 1.0), 1e-6), "epochs"),
        (lambda: ap.epsilon(gaussian(1.0), 2.0), "delta"),
        (lambda: ap.delta(gaussian(1.0), -1.0), "epsilon"),
        (lambda: gaussian(1.0).first(0), "steps"),
        (lambda: gaussian(1.0).first(2), "steps"),
        (lambda: ap.compose([], 1e-6), "mechanisms"),
        (lambda: ap.group_epsilon(gaussian(1.0), 0, 1e-6), "size"),
    ],
)
def test_bad_input_is_refused(bad, parameter):
    with pytest.raises(ap.AntiphaseError, match=f"'{parameter}' parameter"):
        bad()
