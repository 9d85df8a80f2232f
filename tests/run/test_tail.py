"""The epsilon of a run accounts for the bounded range of its random draws (see `antiphase._run.tail`)."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import antiphase as ap
from antiphase._accounting import Budget, Mechanism, epsilon, gaussian
from antiphase._noise import Leaf, log_missing_mass
from antiphase._run import integration
from antiphase._run.tail import LARGEST_SHARE, Tail, tail_of
from tests.run.plans import LEAVES, STEPS, STRATEGIES, fresh_model, plan_for, train

SECRET = ap.Secret.insecure(7)
IDENTITY = Mechanism(ap.strategies.Identity(5), ap.SingleParticipation(), noise_std=1.0)


def divergence(p, q, epsilon):
    return np.maximum(p - math.exp(epsilon) * q, 0.0).sum()


def moved(p, tau, frm, to):
    """Return the distribution p with a mass of up to `tau` moved from entry `frm` to entry `to`."""
    made, amount = p.copy(), min(tau, p[frm])
    made[frm] -= amount
    made[to] += amount
    return made


@pytest.mark.parametrize("eps", [0.0, 0.5, 2.0])
def test_what_is_set_aside_covers_every_move_of_the_missing_mass(eps):
    """Random pairs of distributions, both moved by tau: delta grows by up to (1 + e^eps) tau, and no more."""
    rng, tau, worst = np.random.default_rng(3), 1e-3, 0.0
    aside = Tail(20.0, math.log(tau)).smallest_delta(eps) * LARGEST_SHARE
    for _ in range(2000):
        p, q = rng.dirichlet(np.ones(4)), rng.dirichlet(np.ones(4))
        before = divergence(p, q, eps)
        a, b = rng.permutation(4)[:2]
        after = divergence(moved(p, tau, b, a), moved(q, tau, a, b), eps)
        worst = max(worst, after - before)
    assert 0.99 * (1 + math.exp(eps)) * tau < worst <= aside


def test_an_ordinary_run_states_the_epsilon_of_the_ideal_mechanism(tmp_path):
    plan = plan_for(STRATEGIES["blt"])
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, examples=40, secret=SECRET) as run:
        train(run, fresh_model(), STEPS)
        found = run.report()
    assert found.guarantee == epsilon(plan.mechanism, plan.problem.budget.delta)
    assert 0 < found.smallest_delta < 1e-300


@pytest.mark.parametrize("mass", [1e-14, 1e-12, 1e-11])
@pytest.mark.parametrize("noise_std", [0.7, 1.0, 3.0])
def test_the_stated_pair_holds_with_the_tail(mass, noise_std):
    delta, mechanism = 1e-6, replace(IDENTITY, noise_std=noise_std)
    ideal, found = epsilon(mechanism, delta), Tail(9.0, math.log(mass)).covered(partial(epsilon, mechanism), delta)
    assert gaussian.delta(1 / noise_std, found.value) + (1 + math.exp(found.value)) * mass <= delta
    assert ideal.value < found.value < ideal.value + 0.2
    assert found.kind == "upper"


def test_a_tail_that_takes_up_much_of_delta_is_covered_or_refused():
    """Little noise, where epsilon grows fast as delta is used up: what is stated holds, or is refused."""
    mechanism, delta, outcomes = replace(IDENTITY, noise_std=0.05), 1e-6, []
    ideal = epsilon(mechanism, delta).value
    for power in np.linspace(-14, -4, 60):
        mass = 10.0**power * math.exp(-ideal)
        try:
            found = Tail(9.0, math.log(mass)).covered(partial(epsilon, mechanism), delta).value
        except ap.Refused:
            outcomes.append("refused")
            continue
        assert gaussian.delta(1 / 0.05, found) + (1 + math.exp(found)) * mass <= delta
        outcomes.append("covered")
    assert set(outcomes) == {"covered", "refused"}
    assert outcomes == sorted(outcomes)


@pytest.mark.parametrize("epsilon", [1.0, 100.0, 1e4, math.inf])
def test_the_smallest_delta_is_where_refusal_begins(epsilon):
    tail = Tail(21.0, math.log(1e-80))
    smallest = tail.smallest_delta(epsilon)
    tail.check(epsilon, smallest)
    with pytest.raises(ap.Refused, match="is too small to state epsilon"):
        tail.check(epsilon, math.nextafter(min(smallest, 1.0), 0.0))


def noisy_plan(noise_std, delta):
    plan = plan_for(STRATEGIES["toeplitz"])
    mechanism = replace(plan.mechanism, noise_std=noise_std)
    problem = replace(plan.problem, budget=Budget(1e4, delta))
    return replace(plan, mechanism=mechanism, problem=problem, guarantee=epsilon(mechanism, delta))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("noise_std", "delta", "covered"), [
    (0.1, 1e-6, True),
    (3.0, 1e-300, True),
    (0.03, 1e-6, False),
    (0.05, 1e-250, False),
])  # fmt: skip
def test_an_epsilon_that_the_noise_does_not_cover_is_refused(tmp_path, dtype, noise_std, delta, covered):
    plan = noisy_plan(noise_std, delta)
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, examples=40, dtype=dtype, secret=SECRET) as run:
        train(run, fresh_model(), STEPS)
        if covered:
            found = run.report()
            assert found.guarantee == plan.guarantee
            assert found.smallest_delta < delta
        else:
            with pytest.raises(ap.Refused, match=r"too small to state epsilon = .* bounded by 54\.\d standard"):
                run.report()


@pytest.mark.parametrize("steps", [0, 1])
def test_a_planned_epsilon_that_the_noise_does_not_cover_is_not_stated(tmp_path, steps):
    """The planned epsilon applies if the outputs decided when to stop, so it needs the same check."""
    mechanism = Mechanism(ap.strategies.Identity(4), ap.EveryStep(), noise_std=0.03)
    guarantee = epsilon(mechanism, 1e-6)
    problem = ap.Problem(steps=4, budget=Budget(1e4, 1e-6), participation=ap.EveryStep())
    plan = ap.Plan(problem, mechanism, guarantee, error=1.0)
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, secret=SECRET) as run:
        for step in range(steps):
            run.commit(step, run.digest(step, run.gradient_noise(step)))
        assert guarantee.value > 1430.0 > epsilon(mechanism.first(1), 1e-6).value
        with pytest.raises(ap.Refused, match="is too small to state epsilon"):
            run.report()


def test_every_row_of_z_and_every_entry_of_the_whole_leaves_counts():
    plan = plan_for(ap.strategies.Tree(12))
    leaves = {"a": Leaf((10, 7), ((0, 1), (0, 1))), "b": Leaf((3,))}
    assert plan.mechanism.strategy.rows > 12
    assert tail_of(plan, leaves, "float32").log_mass == log_missing_mass(73 * plan.mechanism.strategy.rows, "float32")


@pytest.mark.parametrize(("source", "words"), [
    ("Threefry of JAX on the device with a 64-bit key", "are bounded by about 7.4 standard deviations"),
    ("PyTorch's generator on cuda (sample 0123)", "are bounded by about 9.6 standard deviations"),
    ("a generator on a device, version 1", "They are bounded, and"),
])  # fmt: skip
def test_the_tail_of_a_device_is_stated_as_an_assumption(tmp_path, source, words):
    plan = plan_for(STRATEGIES["toeplitz"])
    with ap.Run.open(plan, tmp_path, leaves=LEAVES, examples=40, secret=SECRET) as run:
        run.batch(0)
        integration.record_noise_read(run, source, 0)
        run.commit(0, bytes(32))
        found = run.report()
        assert integration.epsilon_with_tail(run, partial(epsilon, plan.mechanism), 1e-6) == epsilon(
            plan.mechanism, 1e-6
        )
    assert found.smallest_delta is None
    assert any("assumes that the draws" in text and words in text for text in found.remarks)
