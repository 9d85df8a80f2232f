"""Calibration: the budget is kept and used."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import antiphase as ap
from antiphase._accounting import Budget, Mechanism, calibrate, delta, epsilon
from antiphase.strategies import BLT, Identity, Toeplitz, Tree
from tests.accounting.oracle import decreasing_root, sampled_delta

CASES = [
    (Identity(300), ap.Poisson(0.02), "zero-out", None),
    (Toeplitz([1.0, 0.5, 0.2], 200), ap.CyclicPoisson(4, 0.1), "add-or-remove", None),
    (Toeplitz([1.0, 0.5, 0.2], 200), ap.CyclicPoisson(4, 0.1, max_batch=80), "zero-out", 2000),
    (Toeplitz([1.0, 0.5, 0.2], 200), ap.FixedSize(4, 20), "replace", 2000),
    (BLT([0.9], [0.3], 50), ap.MinSeparation(10), "zero-out", None),
    (Tree(50), ap.FixedEpochs(5, 10), "replace", None),
    (Identity(50), ap.BallsInBins(5, 10), "zero-out", None),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case[1]).__name__)
@pytest.mark.parametrize("budget", [Budget(0.2, 1e-5), Budget(3.0, 1e-9), Budget(20.0, 1e-6)], ids=repr)
def test_epsilon_is_within_a_thousandth_below_the_budget(case, budget):
    strategy, participation, adjacency, examples = case
    found = calibrate(strategy, participation, budget, adjacency, examples)
    value = epsilon(found.mechanism, budget.delta)
    assert value == found.guarantee
    assert 0.999 * budget.epsilon <= value.value <= budget.epsilon
    assert found.mechanism == Mechanism(strategy, participation, found.mechanism.noise_std, adjacency, examples)
    less = Mechanism(strategy, participation, 0.99 * found.mechanism.noise_std, adjacency, examples)
    assert epsilon(less, budget.delta).value > budget.epsilon


@settings(max_examples=15, deadline=None)
@given(
    rate=st.floats(0.01, 0.99),
    target=st.floats(0.05, 10.0),
    log_delta=st.floats(-12.0, -2.0),
)
def test_one_step_keeps_the_budget_by_an_independent_formula(rate, target, log_delta):
    found = calibrate(Identity(1), ap.Poisson(rate), Budget(target, 10.0**log_delta))
    mu = 1.0 / found.mechanism.noise_std
    assert sampled_delta(mu, rate, target) <= 10.0**log_delta
    assert sampled_delta(1.01 * mu, rate, target) > 10.0**log_delta


@settings(max_examples=40, deadline=None)
@given(target=st.floats(1e-3, 1e3), log_delta=st.floats(-300.0, -0.1), epochs=st.integers(1, 50))
def test_one_gaussian_uses_the_whole_budget(target, log_delta, epochs):
    budget = Budget(target, 10.0**log_delta)
    found = calibrate(Identity(epochs), ap.EveryStep(), budget)
    assert (1 - 1e-9) * target <= found.guarantee.value <= target
    assert delta(found.mechanism, target).value <= budget.delta * (1 + 1e-9)


def test_the_noise_scales_with_the_strategy():
    budget = Budget(2.0, 1e-6)
    for participation in (ap.FixedEpochs(3, 4), ap.CyclicPoisson(4, 0.2)):
        noise = [calibrate(Toeplitz([c, 0.5 * c], 12), participation, budget).mechanism.noise_std for c in (1.0, 7.0)]
        assert noise[1] == pytest.approx(7.0 * noise[0], rel=1e-3)


def test_same_answer_as_dp_accounting():
    """The noise that dp_accounting's calibrate_dp_mechanism finds with its PLD accountant: epsilon 8 at 1e-6."""
    found = calibrate(Identity(2000), ap.Poisson(0.01), Budget(8.0, 1e-6))
    assert 0.6741783 <= found.mechanism.noise_std <= 0.6741783 * 1.001


def test_decreasing_root_finds_a_root():
    assert decreasing_root(lambda x: 2.0 - x, 0.0, 10.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("participation", "adjacency"),
    [
        (ap.Poisson(1e-4), "zero-out"),
        (ap.CyclicPoisson(2, 1e-4), "add-or-remove"),
        (ap.FixedSize(1, 1), "replace"),
        (ap.Poisson(1e-200), "zero-out"),
        (ap.PoissonMinSeparation(1, 1e-4), "zero-out"),
    ],
)
def test_a_delta_above_the_chance_to_take_part_asks_for_no_noise_and_is_refused(participation, adjacency):
    """Noise of 0.03 was the answer: nothing protects an example in the runs that draw it."""
    strategy, budget = ap.strategies.Identity(2), ap.Budget(1.0, 1e-2)
    with pytest.raises(ap.NotProved, match="no noise at all"):
        ap.calibrate(strategy, participation, budget, adjacency, examples=10_000)


def test_a_delta_just_below_that_chance_is_not():
    found = ap.calibrate(ap.strategies.Identity(1), ap.Poisson(0.011), ap.Budget(1.0, 1e-2))
    assert found.guarantee.value <= 1.0
