"""The noise really added over 500 steps has covariance sigma^2 clip^2 N N^T, and the check sees what would be wrong.

The check is on the noise times the inverse root of that covariance, 500 x 1,640 numbers: their variance is known to one
part in 640, so that noise 1 % too small is 13 standard deviations off.
"""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import antiphase.jax as apj
from antiphase.strategies import BLT, Banded, BandedInverse, Fourier, Identity, Stamped, Toeplitz, Tree
from tests.jax.plans import added, departures, is_right, plan_for, run_for

STEPS = 500
PARAMS = {"w": jnp.zeros((40, 40)), "b": jnp.zeros(40)}
STREAMING = {
    "identity": Identity(STEPS),
    "banded": Banded(Toeplitz.square_root(STEPS, 7).columns()),
    "normalized": Toeplitz(Toeplitz.square_root(STEPS, 16).coefficients, STEPS, column_normalized=True),
    "blt": BLT.from_decays([0.999, 0.9, 0.4], [0.99, 0.6, 0.1], STEPS),
    "banded-inverse": BandedInverse.square_root(5, STEPS),
    "tree": Tree(STEPS),
    "stamped": Stamped(Toeplitz.square_root(50, 8), 10),
}
ALL = {**STREAMING, "fourier": Fourier(STEPS, "optimal")}
QUICK = [("host", "blt"), ("device", "banded")]
REST = [("host", name) for name in ALL] + [("device", name) for name in STREAMING]
CASES = [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in REST if case not in QUICK)]


@pytest.mark.parametrize(("source", "name"), CASES)
def test_the_noise_added_has_the_covariance_of_the_plan(tmp_path, source, name):
    plan = plan_for(ALL[name])
    with run_for(plan, tmp_path, PARAMS) as run:
        noise = added(apj.add_correlated_noise(run, source), run, PARAMS)
    assert is_right(noise, plan), departures(noise, plan)


@pytest.mark.parametrize("scale", [0.99, 1.01, 1 / 50])  # the last: scaled for a mean over 50 examples
def test_the_check_sees_noise_of_a_wrong_size(scale):
    strategy, rng = ALL["blt"], np.random.default_rng(0)
    noise = 1.5 * strategy.solve(rng.standard_normal((STEPS, 1640)))
    assert is_right(noise, plan_for(strategy))
    assert not is_right(scale * noise, plan_for(strategy))


@pytest.mark.parametrize("source", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_accumulated_micro_batches_make_one_step(tmp_path, source):
    plan = plan_for(ALL["blt"])
    with run_for(plan, tmp_path, PARAMS) as run:
        optimizer = optax.MultiSteps(
            apj.add_correlated_noise(run, source), 3, use_grad_mean=False
        ).gradient_transformation()
        noise = added(optimizer, run, PARAMS, micro=3)
    assert is_right(noise, plan), departures(noise, plan)


def test_the_check_sees_noise_advanced_with_each_micro_batch():
    """As if the state moved on with every call: a step gets the noise of several steps."""
    strategy, rng = ALL["blt"], np.random.default_rng(0)
    longer = BLT(strategy.decay, strategy.scale, 3 * STEPS)
    calls = 1.5 * longer.solve(rng.standard_normal((3 * STEPS, 1640)))
    assert is_right(calls[:STEPS], plan_for(strategy))
    assert not is_right(calls.reshape(STEPS, 3, -1).sum(1), plan_for(strategy))
    assert not is_right(calls[2::3], plan_for(strategy))


def test_the_check_sees_noise_without_correlation():
    strategy, rng = ALL["banded"], np.random.default_rng(0)
    variance = np.square(strategy.noising()).sum(1)
    white = 1.5 * np.sqrt(variance)[:, None] * rng.standard_normal((STEPS, 1640))
    assert not is_right(white, plan_for(strategy))


def test_the_check_sees_noise_on_one_of_four_shards():
    strategy, rng = ALL["blt"], np.random.default_rng(0)
    noise = 1.5 * strategy.solve(rng.standard_normal((STEPS, 1640)))
    noise[:, 410:] = 0.0
    assert not is_right(noise, plan_for(strategy))


def test_the_check_sees_the_same_noise_on_all_shards():
    strategy, rng = ALL["blt"], np.random.default_rng(0)
    noise = 1.5 * strategy.solve(rng.standard_normal((STEPS, 410)))
    assert not is_right(np.tile(noise, 4), plan_for(strategy))
