"""JAX makes N z in float64 for every strategy that does not need all of z at once."""

import jax
import numpy as np
import pytest

from antiphase.jax._correlator import correlator
from tests.strategies.test_interpreters import STRATEGIES

STREAMING = [name for name, strategy in STRATEGIES.items() if strategy.recursion().is_causal]


@pytest.mark.parametrize("name", STREAMING)
def test_impulses_give_the_dense_matrix(name):
    strategy = STRATEGIES[name]
    with jax.enable_x64(True):
        made, z = correlator(strategy, np.dtype(np.float64)), jax.numpy.eye(strategy.rows)
        buffers, out = jax.numpy.zeros((made.buffer_count, strategy.rows)), []
        for t in range(strategy.steps):
            noise, buffers = made.step(buffers, t, lambda row: z[row])
            out.append(np.asarray(noise))
    assert out[0].dtype == np.float64
    np.testing.assert_allclose(np.array(out), strategy.noising(), rtol=1e-11, atol=1e-11)
