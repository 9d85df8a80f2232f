"""Several mechanisms together, and groups of examples."""

import math

import pytest

import antiphase as ap
from antiphase._accounting import Mechanism, compose, delta, epsilon, gaussian, group_epsilon
from antiphase._accounting.loss_accountant import GaussianSteps
from antiphase._accounting.loss_accountant import epsilon as loss_epsilon
from antiphase.strategies import Identity, Toeplitz
from tests.accounting.oracle import gaussian_epsilon, twice_sampled_delta

PLAIN = Mechanism(Identity(6), ap.FixedEpochs(2, 3), 3.0)
SAMPLED = Mechanism(Identity(30), ap.Poisson(0.1), 1.5)


def test_gaussians_add_up_exactly():
    others = [
        Mechanism(Toeplitz([1.0, 0.5], 4), ap.EveryStep(), 8.0),
        Mechanism(Identity(1), ap.SingleParticipation(), 4.0),
    ]
    squares = 2.0 / 3.0**2 + (1.0 + 3 * 1.5**2) / 8.0**2 + 1.0 / 4.0**2
    found = compose([PLAIN, *others], 1e-6)
    assert found.kind == "exact"
    assert found.value == pytest.approx(gaussian_epsilon(math.sqrt(squares), 1e-6), rel=1e-9)
    assert found.value > gaussian_epsilon(0.99 * math.sqrt(squares), 1e-6)


@pytest.mark.parametrize("participation", [ap.Poisson(0.1), ap.CyclicPoisson(2, 0.1), ap.EveryStep()], ids=repr)
@pytest.mark.parametrize("count", [2, 5, 20])
def test_many_steps_are_a_loop_of_single_steps(participation, count):
    groups = getattr(participation, "groups", 1)
    together = Mechanism(Identity(count * groups), participation, 1.5)
    alone = Mechanism(Identity(groups), participation, 1.5)
    assert compose([alone] * count, 1e-6).value == pytest.approx(epsilon(together, 1e-6).value, rel=1e-6)


def test_fixed_size_steps_are_a_loop_of_single_steps():
    def run(steps):
        return Mechanism(Identity(steps), ap.FixedSize(1, 5), 5.0, "replace", examples=100)

    assert compose([run(1)] * 7, 1e-6).value == pytest.approx(epsilon(run(7), 1e-6).value, rel=1e-9)


def test_two_sampled_runs_lie_between_the_truth_and_that_of_one_percent_less_noise():
    run = Mechanism(Identity(1), ap.Poisson(0.3), 1.0)
    value = compose([run, run], 1e-4).value
    assert twice_sampled_delta(1.0, 0.3, value) <= 1e-4 < twice_sampled_delta(1.01, 0.3, value)


def test_mixed_runs_lie_between_their_parts_and_the_plain_sum():
    found = compose([PLAIN, SAMPLED], 1e-6)
    parts = [epsilon(run, 1e-6).value for run in (PLAIN, SAMPLED)]
    halves = [epsilon(run, 5e-7).value for run in (PLAIN, SAMPLED)]
    assert found.kind == "upper"
    assert max(parts) < found.value < sum(halves)
    # The same with the Gaussian cut into many small ones.
    pieces = [GaussianSteps(math.sqrt(2.0) / 3.0 / 10.0, 1.0, 100), GaussianSteps(1.0 / 1.5, 0.1, 30)]
    assert found.value == pytest.approx(loss_epsilon(pieces, 1e-6), rel=1e-3)


def test_one_run_is_itself_and_order_does_not_matter():
    assert compose([PLAIN], 1e-6).value == pytest.approx(epsilon(PLAIN, 1e-6).value, rel=1e-12)
    assert compose([SAMPLED], 1e-6).value == pytest.approx(epsilon(SAMPLED, 1e-6).value, rel=1e-6)
    assert compose([PLAIN, SAMPLED], 1e-6).value == pytest.approx(compose([SAMPLED, PLAIN], 1e-6).value, rel=1e-9)


def test_under_replace_fixed_size_and_plain_runs_compose():
    plain = Mechanism(Identity(6), ap.FixedEpochs(2, 3), 9.0, "replace")
    sampled = Mechanism(Identity(10), ap.FixedSize(1, 5), 5.0, "replace", examples=100)
    found = compose([plain, sampled], 1e-6)
    assert max(epsilon(plain, 1e-6).value, epsilon(sampled, 1e-6).value) < found.value
    assert found.value < epsilon(plain, 5e-7).value + epsilon(sampled, 5e-7).value
    assert found.kind == "upper"


def test_adjacencies_do_not_mix():
    with pytest.raises(ap.NotProved, match="different adjacencies"):
        compose([PLAIN, Mechanism(Identity(6), ap.FixedEpochs(2, 3), 3.0, "replace")], 1e-6)


# Groups.


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_group_of_a_gaussian_is_exact(size):
    found = group_epsilon(PLAIN, size, 1e-6)
    assert found.kind == "exact"
    assert found.value == pytest.approx(gaussian_epsilon(size * math.sqrt(2.0) / 3.0, 1e-6), rel=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_a_group_of_a_sampled_mechanism_follows_from_one_example(size):
    found = group_epsilon(SAMPLED, size, 1e-6)
    one = found.value / size
    growth = (math.exp(found.value) - 1.0) / (math.exp(one) - 1.0)
    assert delta(SAMPLED, one).value * growth <= 1e-6
    assert delta(SAMPLED, 0.999 * one).value * growth > 0.999e-6
    assert found.kind == "upper"
    # What is proved is no less than the truth for two examples that are always drawn apart: a composition.
    assert found.value > compose([SAMPLED] * size, 1e-6).value


def test_a_group_of_one_is_an_example():
    assert group_epsilon(SAMPLED, 1, 1e-6).value == epsilon(SAMPLED, 1e-6).value
    assert group_epsilon(PLAIN, 1, 1e-6).value == gaussian.epsilon(math.sqrt(2.0) / 3.0 * (1 + 1e-16), 1e-6)
