"""Times whole steps with jax_privacy, one at a time. Arguments: width of the model, batch size, microbatch size.

For each line of the input, which names a mechanism or "none", it takes one jitted step of clipped gradients, noise and
SGD with momentum, and prints the seconds.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import noise_addition
from jax_privacy.clipping import clipped_grad

from noise import noising_matrix

WIDTH, BATCH, MICROBATCH = map(int, sys.argv[1:])


def loss(params, x):
    return jnp.square(jnp.tanh(x @ params["first"]) @ params["second"]).mean()


def start(name):
    rng = np.random.default_rng(0)
    names = ("first", "second")
    params = {key: jnp.asarray(rng.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5, jnp.float32) for key in names}
    x = jnp.asarray(rng.normal(size=(BATCH, WIDTH)), jnp.float32)
    gradient = clipped_grad(
        loss, l2_clip_norm=1.0, batch_argnums=1, keep_batch_dim=False, microbatch_size=MICROBATCH, normalize_by=BATCH
    )
    sgd = optax.sgd(0.1, momentum=0.9)
    if name == "none":
        noise = optax.identity()
    else:
        noise = noise_addition.matrix_factorization_privatizer(noising_matrix(name), stddev=1.0, prng_key=7)

    @jax.jit
    def step(params, noise_state, state):
        noisy, noise_state = noise.update(gradient(params, x), noise_state)
        updates, state = sgd.update(noisy, state)
        return optax.apply_updates(params, updates), noise_state, state

    return step, (params, noise.init(params), sgd.init(params))


sides = {}
for line in sys.stdin:
    name = line.strip()
    if name not in sides:
        sides[name] = list(start(name))
    step, held = sides[name]
    begin = time.perf_counter()
    sides[name][1] = jax.block_until_ready(step(*held))
    print(time.perf_counter() - begin, flush=True)
