"""Before the first step: the noise that a compiled program makes on this device is that of the plan."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._noise import canonical, check_noise
from antiphase.jax._correlator import correlator
from antiphase.strategies import Strategy


@lru_cache(maxsize=32)
def check_device_noise(strategy: Strategy, noise_std: float, dtype: np.dtype[Any], clip_norm: float) -> None:
    """Refuse a plan whose noise does not come out right in this dtype; one that did is not compiled again.

    Args:
        strategy: C.
        noise_std: of the plan.
        dtype: of noise and state.
        clip_norm: what the noise is multiplied by besides.
    """
    made = canonical(strategy, noise_std, dtype)
    made_by, scale = correlator(made.strategy, jnp.dtype(dtype)), made.noise_std * clip_norm

    def respond(z: Array, steps: int) -> NDArray[Any]:
        def step(carried: tuple[jax.Array, jax.Array], t: Any) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            buffers, rows = carried
            noise, buffers = made_by.step(buffers, t, lambda row: rows[row])
            return (buffers, rows), scale * noise

        with jax.ensure_compile_time_eval():  # a plan may be simulated inside a program that is being traced
            start = jnp.zeros((made_by.rows, z.shape[1]), dtype), jnp.asarray(z, dtype)
            return np.asarray(jax.jit(lambda start: jax.lax.scan(step, start, jnp.arange(steps))[1])(start))

    check_noise(strategy, noise_std, dtype, respond, clip_norm=clip_norm)
