"""Train on handwritten digits with JAX and Optax, with differential privacy from correlated noise.

    python examples/digits_optax.py --directory /tmp/digits

Needs `pip install antiphase[jax] scikit-learn`. If interrupted, run it again: it resumes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import antiphase as ap
import antiphase.jax as apj


def loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def logits(params: Any, images: jax.Array) -> jax.Array:
    hidden = jnp.tanh(images @ params["hidden"] + params["bias"])
    return hidden @ params["out"]


def fresh_params(width: int = 32) -> Any:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "hidden": jax.random.normal(first, (64, width)) / 8.0,
        "bias": jnp.zeros(width),
        "out": jax.random.normal(second, (width, 10)) / width**0.5,
    }


def main(directory: Path, epochs: int, batch_size: int, epsilon: float) -> float:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    train, test = slice(0, 1500), slice(1500, None)

    # 1. State the problem and the privacy budget, and make a plan.
    problem = ap.Problem(
        steps=epochs * 1500 // batch_size,
        budget=ap.Budget(epsilon=epsilon, delta=1e-4),
        examples=1500,
        batch_size=batch_size,
        workload=ap.Momentum(0.9),
    )
    plan = ap.plan(problem, families=["identity", "toeplitz"])

    # 2. A run owns the secret, the batches, the noise and the ledger. Do not share its directory with the model.
    params = fresh_params()
    with ap.Run.open(plan, directory / "run", leaves=apj.leaves(params), examples=1500) as run:
        # 3. Create an ordinary Optax chain. Noise comes first, then division by the batch size.
        optimizer = optax.chain(
            apj.add_correlated_noise(run), optax.scale(1 / batch_size), optax.sgd(0.5, momentum=0.9)
        )
        clipped = apj.clipped_sum(loss, problem.clip_norm)

        @jax.jit
        def step(params: Any, state: Any, data: Any, mask: Any) -> tuple[Any, Any]:
            updates, state = optimizer.update(clipped(params, data, mask), state, params)
            return optax.apply_updates(params, updates), state

        # 4. Use the run's own batches, and commit every step. Checkpoints are encrypted with the run's secret.
        state, checkpoint = optimizer.init(params), directory / "checkpoint"
        if checkpoint.exists():
            params, state = apj.load(checkpoint, (params, state), run)
        for batch in apj.batches(run, (images[train], labels[train]), start=int(state[0].step)):
            params, state = step(params, state, batch.data, batch.mask)
            apj.commit(run, state, params, batch.indices)
            if batch.step % 20 == 19:
                apj.save(checkpoint, (params, state), run)

        # 5. Call `publish` before you release anything. The report states the guarantee of the steps that ran.
        run.publish("accuracy on the test images")
        accuracy = float((logits(params, images[test]).argmax(1) == labels[test]).mean())
        report = apj.report(run, state)
    assert report.guarantee is not None
    print(f"{plan.candidates[0].name}: accuracy {accuracy:.1%}, epsilon {report.guarantee.value:.3f}")
    print(*report.remarks, sep="\n")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run and the checkpoint")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=4.0)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    main(arguments.directory, arguments.epochs, arguments.batch_size, arguments.epsilon)
