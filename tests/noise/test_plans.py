"""Streams of real mechanisms and plans."""

import numpy as np
import pytest

import antiphase as ap
from tests.noise.streams import SECRET, flat, take

LEAVES = [(50,)]


def plan(strategy, noise_std=3.0):
    mechanism = ap.Mechanism(strategy, ap.SingleParticipation(), noise_std)
    guarantee = ap.epsilon(mechanism, 1e-5)
    budget = ap.Budget(max(4.0, guarantee.value), 1e-5)
    problem = ap.Problem(steps=strategy.steps, budget=budget, participation=ap.SingleParticipation())
    return ap.Plan(problem, mechanism, guarantee, error=1.0)


@pytest.mark.parametrize("strategy", [ap.strategies.BLT([0.9], [0.2], 6), ap.strategies.Tree(6)])
def test_an_extended_plan_goes_on_with_the_noise_of_its_root(strategy):
    first = plan(strategy)
    made = ap.NoiseStream(first, LEAVES, SECRET, "run")
    released = take(made, 4)
    longer = first.extend(9).extend(20)
    made.extend(longer)
    whole = take(ap.NoiseStream(longer, LEAVES, SECRET, "run"))
    assert np.concatenate([released, take(made)]).tobytes() == whole.tobytes()
    assert not np.isin(released, take(ap.NoiseStream(plan(longer.mechanism.strategy), LEAVES, SECRET, "run"))).any()


def test_a_mechanism_and_its_extension(tmp_path):
    short, long = (ap.Mechanism(ap.strategies.BLT([0.9], [0.2], n), ap.SingleParticipation(), 1.0) for n in (4, 9))
    made = ap.NoiseStream(short, LEAVES, SECRET)
    released = take(made)
    made.extend(long)
    made.save(tmp_path / "state")
    resumed = ap.NoiseStream.load(tmp_path / "state", long, SECRET)
    whole = take(ap.NoiseStream(long, LEAVES, SECRET, first=short))
    assert np.concatenate([released, take(resumed)]).tobytes() == whole.tobytes()


def test_noise_has_the_standard_deviation_of_the_mechanism():
    """Per unit clipping norm, for C at its own scale: one step of 2 I needs half of noise_std (bound: 5 deviations)."""
    mechanism = ap.Mechanism(ap.strategies.Dense([[2.0]]), ap.SingleParticipation(), 3.0)
    noise = flat(ap.NoiseStream(mechanism, [(400_000,)], SECRET).next())
    assert abs(noise.std() / 1.5 - 1) < 5 / np.sqrt(2 * 400_000)


def test_plans_that_differ_in_anything_share_no_noise():
    base = plan(ap.strategies.Identity(6))
    others = [
        plan(ap.strategies.Identity(7)),
        plan(ap.strategies.Identity(6), 3.1),
        plan(ap.strategies.Toeplitz([1.0], 6)),
    ]
    drawn = flat(ap.NoiseStream(base, LEAVES, SECRET).white(0))
    for other in [*others, base.mechanism]:
        assert not np.isin(drawn, flat(ap.NoiseStream(other, LEAVES, SECRET).white(0))).any()
