"""jax_privacy's examples/distributed_noise_generation.py with Antiphase: noise for a model sharded over a mesh.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python examples/jax_privacy/distributed_noise_generation.py

Lines that change from jax_privacy to Antiphase end in "# Antiphase". It needs eight devices, or a processor that is
divided into eight as above. Each device makes the noise of its own shard and holds its own shard of the state. Without
a run, `simulate_noise` shows memory and time; `add_correlated_noise(run, "device", shardings=...)` makes the same noise
for a run.
"""

import argparse
import time

import jax
import jax.numpy as jnp

import antiphase as ap  # Antiphase
import antiphase.jax as apj  # Antiphase
from antiphase.strategies import Toeplitz  # Antiphase

ITERATIONS = 1000


def generate_noise(params, bands, steps):
    strategy = Toeplitz.square_root(ITERATIONS, bands)  # Antiphase
    mechanism = ap.Mechanism(strategy, ap.MinSeparation(bands), 1.0)  # Antiphase
    guarantee = ap.epsilon(mechanism, 1e-6)  # Antiphase
    budget = ap.Budget(guarantee.value, 1e-6)  # Antiphase
    problem = ap.Problem(ITERATIONS, budget, participation=mechanism.participation)  # Antiphase
    plan = ap.Plan(problem, mechanism, guarantee, error=1.0)  # Antiphase
    privatizer = apj.simulate_noise(plan, jax.random.key(0))  # Antiphase

    @jax.jit
    def run(params):
        state = privatizer.init(params)
        for _ in range(steps):  # a real program passes the sum of the clipped gradients
            noisy, state = privatizer.update(params, state)
        return state, noisy

    start = time.time()
    compiled = run.lower(params).compile()
    middle = time.time()
    state, noisy = jax.block_until_ready(compiled(params))
    print(f"compiled in {middle - start:.1f} s, one step in {(time.time() - middle) / steps:.3f} s")
    return state, noisy


def main(hidden_size=256, bands=8, steps=2):
    axes = (jax.sharding.AxisType.Explicit,) * 2
    mesh = jax.make_mesh((2, jax.device_count() // 2), ("x", "y"), axis_types=axes)
    with jax.set_mesh(mesh):
        params = jax.sharding.reshard(jnp.zeros((hidden_size, hidden_size**2)), jax.sharding.PartitionSpec("x", "y"))
        state, noisy = generate_noise(params, bands, steps)
    (buffer,) = state.private.buffers  # Antiphase
    for name, array in (("model", params), ("state", buffer), ("noise", noisy)):
        share = max(shard.data.nbytes for shard in array.addressable_shards)
        print(f"{name}: shape {array.shape}, {array.sharding.spec}, {share / 2**20:.1f} MiB per device")
    return noisy, buffer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--bands", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2)
    main(**vars(parser.parse_args()))
