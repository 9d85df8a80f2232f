"""Every streaming strategy on the device is N z, for the z it draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import antiphase as ap
from antiphase.jax._correlator import correlator
from antiphase.strategies import BLT, Banded, BandedInverse, Stamped, Toeplitz, Tree
from tests.catalog import NOT_CAUSAL, every_strategy

SIZES = (1, 5, 24)
ALL = {f"{name}-{n}": strategy for n in SIZES for name, strategy in every_strategy(n)}
STREAMING = {name: strategy for name, strategy in ALL.items() if not name.startswith(NOT_CAUSAL)}
CASES = [name if name.endswith("-24") else pytest.param(name, marks=pytest.mark.slow) for name in STREAMING]
LONG = {
    "blt": BLT.from_decays([0.9999, 0.97, 0.8, 0.3], [0.999, 0.9, 0.5, 0.1], 3000),
    "toeplitz": Toeplitz.square_root(3000, 24),
    "banded": Banded(Toeplitz.square_root(3000, 9).columns()),
    "banded-inverse": BandedInverse.square_root(9, 3000),
    "tree": Tree(3000),
    "stamped": Stamped(Tree(50), 60),
}


def noise_from(strategy, z):
    """All steps in one compiled loop, as training would run it."""
    made = correlator(strategy, jnp.dtype(z.dtype))
    rows = jnp.asarray(z)

    def step(buffers, t):
        noise, buffers = made.step(buffers, t, lambda row: rows[row])
        return buffers, noise

    start = jnp.zeros((made.buffer_count, *z.shape[1:]), z.dtype)
    return np.asarray(jax.jit(lambda: jax.lax.scan(step, start, jnp.arange(strategy.steps)))()[1])


@pytest.mark.parametrize("name", CASES)
def test_noise_is_n_z(name):
    strategy = STREAMING[name]
    z = np.random.default_rng(0).standard_normal((strategy.rows, 3, 2)).astype(np.float32)
    wanted = strategy.solve(z)
    assert np.abs(noise_from(strategy, z) - wanted).max() < 1e-5 * max(np.abs(wanted).max(), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_long_streams_do_not_drift(name):
    strategy = LONG[name]
    z = np.random.default_rng(1).standard_normal((strategy.rows, 2)).astype(np.float32)
    wanted = strategy.solve(z)
    assert np.abs(noise_from(strategy, z) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_memory_is_what_the_plan_says():
    for strategy in STREAMING.values():
        assert correlator(strategy, jnp.dtype(jnp.float32)).buffer_count <= max(strategy.memory_copies, 1)


@pytest.mark.parametrize("name", [name for name in ALL if name.startswith(NOT_CAUSAL) and name.endswith("-24")])
def test_what_does_not_stream_is_refused(name):
    with pytest.raises(ap.InvalidArgument, match="needs all rows of z at every step"):
        correlator(ALL[name], jnp.dtype(jnp.float32))


def test_a_blt_that_cancels_needs_float64():
    strategy = BLT([0.9, 0.8999], [20.0, -20.0], 8)
    with pytest.raises(ap.InvalidArgument, match="scales cancel"):
        correlator(strategy, jnp.dtype(jnp.float32))
