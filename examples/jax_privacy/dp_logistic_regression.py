"""jax_privacy's examples/dp_logistic_regression.py with Antiphase: logistic regression with banded noise.

    python examples/jax_privacy/dp_logistic_regression.py --directory /tmp/logistic

Lines that change from jax_privacy to Antiphase end in "# Antiphase". Left out: the audit, and the progress output. The
plan chooses the number of bands.

The final loss is that of the training data. It has no noise, and epsilon does not cover it: do not publish it.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import antiphase as ap  # Antiphase
import antiphase.jax as apj  # Antiphase

LEARNING_RATE, L2_CLIP_NORM, DELTA, PADDING_MULTIPLE = 0.2, 1.0, 1e-5, 32


def logistic_loss(params, features, labels):
    logits = features @ params["weights"] + params["bias"]
    return -jax.nn.log_sigmoid(jnp.where(labels, logits, -logits)).mean()


def create_benchmark(samples, features, seed=0):
    """Return the parameters that the labels are drawn with, features and labels."""
    rng = np.random.default_rng(seed)
    params = {"weights": rng.normal(size=features).astype(np.float32), "bias": np.float32(0.0)}
    matrix = rng.normal(size=(samples, features)).astype(np.float32)
    labels = rng.random(samples) < 1 / (1 + np.exp(-matrix @ params["weights"]))
    return params, matrix, labels


def main(directory, users=9000, features=100, epsilon=1.0, batch_size=1000, iterations=500):
    true_params, matrix, labels = create_benchmark(users, features)
    params = jax.tree.map(jnp.zeros_like, true_params)

    problem = ap.Problem(  # Antiphase
        steps=iterations,  # Antiphase
        budget=ap.Budget(epsilon, DELTA),  # Antiphase
        examples=users,  # Antiphase
        batch_size=batch_size,  # Antiphase
        clip_norm=L2_CLIP_NORM,  # Antiphase
    )  # Antiphase
    plan = ap.plan(problem, ["identity", "toeplitz"], pipelines=["poisson", "cyclic-poisson"])  # Antiphase
    grad_fn = apj.clipped_sum(logistic_loss, L2_CLIP_NORM)  # Antiphase
    run = ap.Run.open(plan, directory, leaves=apj.leaves(params), examples=users)  # Antiphase
    noise, scale = apj.add_correlated_noise(run), optax.scale(1 / batch_size)  # Antiphase
    optimizer = optax.chain(noise, scale, optax.sgd(LEARNING_RATE))  # Antiphase

    @jax.jit
    def update_fn(params, batch, mask, opt_state):
        clipped_grad_sum = grad_fn(params, batch, mask)  # Antiphase
        updates, opt_state = optimizer.update(clipped_grad_sum, opt_state)
        return optax.apply_updates(params, updates), opt_state

    opt_state = optimizer.init(params)
    for batch in apj.batches(run, (matrix, labels), multiple=PADDING_MULTIPLE):  # Antiphase
        params, opt_state = update_fn(params, batch.data, batch.mask, opt_state)
        apj.commit(run, opt_state, params, batch.indices)  # Antiphase

    run.publish("the parameters")  # Antiphase
    found = apj.report(run, opt_state).guarantee.value  # Antiphase
    run.close()  # Antiphase
    final, best = (float(logistic_loss(p, matrix, labels)) for p in (params, true_params))
    print(f"{plan.candidates[0].name}: epsilon {found:.3f}, final loss {final:.4f}, optimal loss {best:.4f}")
    return final


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run")
    parser.add_argument("--users", type=int, default=9000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=500)
    main(**vars(parser.parse_args()))
