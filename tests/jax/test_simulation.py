"""Simulated noise: mapped over keys, each with noise of its own and of the plan's covariance."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import antiphase as ap
import antiphase.jax as apj
from antiphase._run.tail import DEVICE_ENDS
from antiphase.jax._device_noise import SOURCE, check_addresses, standard_normals
from antiphase.strategies import Toeplitz
from tests.jax.plans import is_right, plan_for


def test_keys_are_mapped_over():
    plan = plan_for(Toeplitz.square_root(60, 8))

    def noise(key):
        optimizer = apj.simulate_noise(plan, key)

        def step(state, _):
            updates, state = optimizer.update(jnp.zeros(500), state)
            return state, updates

        return jax.lax.scan(step, optimizer.init(jnp.zeros(500)), length=60)[1]

    made = np.asarray(jax.jit(jax.vmap(noise))(jax.random.split(jax.random.key(0), 3)), np.float64)
    for row in made:
        assert is_right(row, plan)
    assert is_right(np.concatenate(made, axis=1), plan)  # unrelated to one another


def test_other_keys_are_refused():
    with pytest.raises(ap.InvalidArgument, match="threefry2x32"):
        apj.simulate_noise(plan_for(Toeplitz([1.0], 2)), jax.random.key(0, impl="rbg"))


def test_no_two_addresses_share_a_stream():
    key, like = jnp.array([1, 2], jnp.uint32), jnp.zeros(8)
    seen = {
        standard_normals(key, 3, leaf, jnp.int32(row), like, jnp.dtype(jnp.float32)).tobytes()
        for leaf in range(3)
        for row in range(40)
    }
    assert len(seen) == 3 * 40
    with pytest.raises(ap.InvalidArgument, match="67108864 rows of noise and 32 leaves"):
        check_addresses(1 << 26, 32)


def test_tails_are_normal():
    """A draw of float32 ends at 5.4 standard deviations, and thins out before: eight million of ours do not."""
    size, rows = 4_000_000, 2
    key, kind = jnp.array([3, 4], jnp.uint32), jnp.dtype(jnp.float32)
    draw = jax.jit(lambda row: standard_normals(key, 1, 0, row, jnp.zeros(size), kind))
    made = np.abs(np.stack([draw(jnp.int32(row)) for row in range(rows)]))
    for edge in (2.0, 3.0, 4.0, 4.8):
        wanted = 2 * norm.sf(edge) * made.size
        assert abs((made > edge).sum() - wanted) < 5 * np.sqrt(wanted), edge


def test_draws_end_where_the_report_says():
    """jax.random.normal takes 2^23 values: the last ones come up in 2^25 draws, and the sum of two ends at them."""
    draw = jax.jit(lambda i: jax.random.normal(jax.random.fold_in(jax.random.key(0), i), (1 << 23,)))
    made = [draw(i) for i in range(4)]
    ends = -min(float(array.min()) for array in made), max(float(array.max()) for array in made)
    assert ends == pytest.approx((norm.isf(2.0**-25), norm.isf(3 * 2.0**-25)), abs=1e-3)
    said = DEVICE_ENDS[next(name for name in DEVICE_ENDS if SOURCE.startswith(name))]
    assert said["float32"] == pytest.approx(math.sqrt(2) * min(ends), abs=0.01)
    assert said["float64"] == pytest.approx(math.sqrt(2) * norm.isf(3 * 2.0**-54), abs=0.01)
