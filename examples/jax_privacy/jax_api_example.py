"""jax_privacy's examples/jax_api_example.py with Antiphase: a line fitted in plain JAX, without Optax in the loop.

    python examples/jax_privacy/jax_api_example.py --directory /tmp/line

Lines that change from jax_privacy to Antiphase end in "# Antiphase". The training loss of a batch, which jax_privacy's
example prints, has no noise; here it is not printed.

The final loss is that of the training data. It has no noise, and epsilon does not cover it: do not publish it.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import antiphase as ap  # Antiphase
import antiphase.jax as apj  # Antiphase

TRUE_W, TRUE_B, LEARNING_RATE, CLIPPING_NORM = 2.0, 1.0, 0.001, 1.0


def loss_fn(params, x, y):
    return jnp.mean((params["w"] * x + params["b"] - y) ** 2)


def load_data(samples, seed=3):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 10.0, samples).astype(np.float32)
    return x, (TRUE_W * x + TRUE_B + 0.1 * rng.normal(size=samples)).astype(np.float32)


def updated_model_params(params, noisy_grads, learning_rate):
    return jax.tree.map(lambda p, g: p - learning_rate * g, params, noisy_grads)


def main(directory, train_size=10_000, batch_size=256, num_epochs=100, epsilon=1.0, learning_rate=LEARNING_RATE):
    data = load_data(train_size)
    params = {"w": jnp.float32(-0.5), "b": jnp.float32(0.3)}

    steps, budget = num_epochs * train_size // batch_size, ap.Budget(epsilon, 1e-5)  # Antiphase
    problem = ap.Problem(
        steps, budget, examples=train_size, batch_size=batch_size, clip_norm=CLIPPING_NORM
    )  # Antiphase
    plan = ap.plan(problem, ["identity", "toeplitz"], pipelines=["poisson", "cyclic-poisson"])  # Antiphase
    grad_fn = apj.clipped_sum(loss_fn, CLIPPING_NORM)  # Antiphase
    run = ap.Run.open(plan, directory, leaves=apj.leaves(params), examples=train_size)  # Antiphase
    privatizer = apj.add_correlated_noise(run)  # Antiphase
    noise_state = privatizer.init(params)

    @jax.jit
    def dp_update_step(params, batch, mask, noise_state):
        grads = grad_fn(params, batch, mask)  # Antiphase
        noisy_sum, noise_state = privatizer.update(grads, noise_state)  # Antiphase
        noisy_grads = jax.tree.map(lambda x: x / batch_size, noisy_sum)  # Antiphase
        return updated_model_params(params, noisy_grads, learning_rate), noise_state

    for batch in apj.batches(run, data):  # Antiphase
        params, noise_state = dp_update_step(params, batch.data, batch.mask, noise_state)
        apj.commit(run, noise_state, params, batch.indices)  # Antiphase

    run.publish("the line")  # Antiphase
    found = apj.report(run, noise_state).guarantee.value  # Antiphase
    run.close()  # Antiphase
    loss, w, b = float(loss_fn(params, *data)), float(params["w"]), float(params["b"])
    print(f"{plan.candidates[0].name}: epsilon {found:.3f}, final loss {loss:.4f}, w {w:.3f}, b {b:.3f}")
    return loss


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run")
    parser.add_argument("--train-size", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--num-epochs", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    main(**vars(parser.parse_args()))
