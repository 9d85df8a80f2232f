"""The student network of the training benchmark in JAX, with its parameters as one flat vector.

For one example, the gradient of a layer is an outer product. So the norm of this gradient can be computed without
materialising the gradient, and the sum of the clipped gradients is a matrix product. For each pair of a learning rate
and a seed, one model is trained. All models are trained in parallel.
"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

EXAMPLE = Path(__file__).parents[1] / "examples" / "teacher_images.py"
teacher = SimpleNamespace(**run_path(str(EXAMPLE)))  # examples are files, not a package
SIZES = [
    (teacher.PIXELS, teacher.WIDTH),
    (teacher.WIDTH,),
    (teacher.WIDTH, teacher.CLASSES),
    (teacher.CLASSES,),
]
PARAMETERS = sum(int(np.prod(size)) for size in SIZES)


def flat_params(seed: int) -> np.ndarray:
    """Return the initial parameters of `examples/teacher_images.py`, flattened in the order of SIZES."""
    tree = teacher.fresh_params(jax.random.key(seed))
    parts = [tree["hidden"]["w"], tree["hidden"]["b"], tree["out"]["w"], tree["out"]["b"]]
    return np.concatenate([np.asarray(part).reshape(-1) for part in parts])


def split(theta: jax.Array) -> list[jax.Array]:
    ends = np.cumsum([int(np.prod(size)) for size in SIZES])
    return [part.reshape(size) for part, size in zip(jnp.split(theta, ends[:-1]), SIZES, strict=True)]


def outputs(theta: jax.Array, x: jax.Array) -> jax.Array:
    w, b, v, c = split(theta)
    return jax.nn.relu(x @ w + b) @ v + c


def clipped_sum(theta: jax.Array, x: jax.Array, y: jax.Array, mask: jax.Array, clip_norm: float) -> jax.Array:
    """Return the sum of the gradients of the examples in `mask`, each clipped to `clip_norm`."""
    w, b, v, c = split(theta)
    before = x @ w + b
    hidden = jax.nn.relu(before)
    back = jax.nn.softmax(hidden @ v + c) - jax.nn.one_hot(y, teacher.CLASSES)
    back_hidden = (back @ v.T) * (before > 0)
    square = _norms(back) * (_norms(hidden) + 1.0) + _norms(back_hidden) * (_norms(x) + 1.0)
    weight = (mask * jnp.minimum(1.0, clip_norm / jnp.sqrt(square + 1e-20)))[:, None]
    back, back_hidden = weight * back, weight * back_hidden
    parts = [x.T @ back_hidden, back_hidden.sum(0), hidden.T @ back, back.sum(0)]
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _norms(rows: jax.Array) -> jax.Array:
    return jnp.square(rows).sum(1)


@jax.jit
def train(carry: Any, data: Any, steps: Any, rates: jax.Array, settings: Any) -> Any:
    """Return parameters and momentum after some steps of heavy-ball SGD, for all learning rates and seeds.

    Args:
        carry: (parameters, momentum), each of shape (rates, seeds, parameters).
        data: images and labels.
        steps: (noise, indices, mask, schedule), each with one row per step. The noise is for clipping norm 1.
        rates: learning rates.
        settings: clip_norm, batch_size and beta.
    """
    images, labels = data
    clip_norm, batch_size, beta = settings
    gradients = jax.vmap(jax.vmap(clipped_sum, (0, 0, 0, 0, None)), (0, None, None, None, None))

    def step(carry: Any, now: Any) -> Any:
        theta, momentum = carry
        noise, indices, mask, schedule = now
        total = gradients(theta, images[indices], labels[indices], mask, clip_norm) + clip_norm * noise
        momentum = beta * momentum + total / batch_size
        return (theta - schedule * rates[:, None, None] * momentum, momentum), None

    return jax.lax.scan(step, carry, steps)[0]


@jax.jit
def accuracy(theta: jax.Array, data: Any) -> jax.Array:
    """Return the accuracy of every run on (images, labels)."""
    images, labels = data
    one = jax.vmap(jax.vmap(lambda t: (outputs(t, images).argmax(1) == labels).mean()))
    return one(theta)
