"""Train a student network privately in JAX, on 50,000 small images that a fixed teacher network has labelled.

    python examples/teacher_images.py --directory /tmp/teacher --epsilon 4

Training has 20 epochs of 100 steps with 500 examples per step, as in the CIFAR experiments of the papers on correlated
noise. All data are generated from fixed seeds, so nothing is downloaded. docs/training.md compares mechanisms on these
data.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import antiphase as ap
import antiphase.jax as apj

SIDE, CLASSES, WIDTH = 8, 10, 64
PIXELS = SIDE * SIDE


def pictures(count: int, rng: np.random.Generator) -> np.ndarray:
    """Return smooth random images, of shape (count, PIXELS). They are low-pass filtered noise with variance 1."""
    frequency = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.rfftfreq(SIDE)[None, :])
    damping = 1.0 / (frequency + 1.0 / SIDE)
    smooth = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((count, SIDE, SIDE))) * damping, s=(SIDE, SIDE))
    return (smooth / smooth.std()).reshape(count, PIXELS).astype(np.float32)


def teach(images: np.ndarray) -> np.ndarray:
    """Return the index of the largest output of the teacher, a two-layer network with fixed random weights."""
    rng = np.random.default_rng(2025)
    hidden = np.maximum(images @ rng.standard_normal((PIXELS, 48)) / 8.0, 0.0)
    outputs = (hidden - hidden.mean(0)) @ rng.standard_normal((48, CLASSES))
    return ((outputs - outputs.mean(0)) / outputs.std(0)).argmax(1).astype(np.int32)


def make_data(examples: int = 50_000, tests: int = 10_000) -> tuple[Any, Any]:
    """Return the training set and the test set, each as (images, labels)."""
    images = pictures(examples + tests, np.random.default_rng(8))
    labels = teach(images)
    return (images[:examples], labels[:examples]), (images[examples:], labels[examples:])


def fresh_params(key: jax.Array, width: int = WIDTH) -> Any:
    first, second = jax.random.split(key)
    return {
        "hidden": {"w": jax.random.normal(first, (PIXELS, width)) / PIXELS**0.5, "b": jnp.zeros(width)},
        "out": {"w": jax.random.normal(second, (width, CLASSES)) / width**0.5, "b": jnp.zeros(CLASSES)},
    }


def logits(params: Any, images: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"]["w"] + params["out"]["b"]


def loss(params: Any, image: jax.Array, label: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)


def main(directory: Path, epsilon: float, examples: int, epochs: int, steps_per_epoch: int) -> float:
    training, (test_images, test_labels) = make_data(examples, 10_000)
    batch_size = examples // steps_per_epoch
    problem = ap.Problem(
        steps=epochs * steps_per_epoch,
        budget=ap.Budget(epsilon=epsilon, delta=1e-5),
        examples=examples,
        batch_size=batch_size,
        workload=ap.Momentum(0.9),
    )
    plan = ap.plan(problem, families=["identity", "toeplitz"])
    params = fresh_params(jax.random.key(0))
    with ap.Run.open(plan, directory / "run", leaves=apj.leaves(params), examples=examples) as run:
        optimizer = optax.chain(
            apj.add_correlated_noise(run), optax.scale(1 / batch_size), optax.sgd(0.25, momentum=0.9)
        )
        clipped = apj.clipped_sum(loss, problem.clip_norm)

        @jax.jit
        def step(params: Any, state: Any, data: Any, mask: Any) -> tuple[Any, Any]:
            updates, state = optimizer.update(clipped(params, data, mask), state, params)
            return optax.apply_updates(params, updates), state

        state = optimizer.init(params)
        for batch in apj.batches(run, training, start=0):
            params, state = step(params, state, batch.data, batch.mask)
            apj.commit(run, state, params, batch.indices)
        run.publish("accuracy on the test images")
        accuracy = float((logits(params, test_images).argmax(1) == test_labels).mean())
        report = apj.report(run, state)
    assert report.guarantee is not None
    print(f"{plan.candidates[0].name}: accuracy {accuracy:.1%}, epsilon {report.guarantee.value:.3f}")
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, required=True, help="directory for the run; use a new one each time")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps-per-epoch", type=int, default=100)
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    main(arguments.directory, arguments.epsilon, arguments.examples, arguments.epochs, arguments.steps_per_epoch)
