"""A federated task: each user has a few images, and sends clipped updates to a server.

Images and labels are those of `examples/teacher_images.py`. The label distribution of each user is drawn at random from
a Dirichlet distribution with parameter 0.3, so the users' data differ strongly.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

PIXELS, WIDTH, CLASSES = 64, 24, 10
PICTURES, LOCAL_STEPS, LOCAL_RATE = 8, 2, 0.25
SKEW = 0.3
FIRST = PIXELS * WIDTH
SECOND = FIRST + WIDTH
THIRD = SECOND + WIDTH * CLASSES
PARAMETERS = THIRD + CLASSES
Floats = np.ndarray[Any, np.dtype[np.float32]]


def make_users(images: np.ndarray, labels: np.ndarray, users: int) -> tuple[Floats, np.ndarray]:
    """Return the images and labels of all users, of shapes (users, PICTURES, PIXELS) and (users, PICTURES)."""
    rng = np.random.default_rng(11)
    kinds = [np.flatnonzero(labels == kind) for kind in range(CLASSES)]
    weights = rng.dirichlet(np.full(CLASSES, SKEW), users) * np.array([len(kind) > 0 for kind in kinds])
    edges = np.cumsum(weights, axis=1)
    drawn = (rng.random((users, PICTURES, 1)) * edges[:, None, -1:] > edges[:, None, :-1]).sum(2)
    chosen = np.empty(drawn.shape, np.int64)
    for kind, members in enumerate(kinds):
        wanted = drawn == kind
        if wanted.any():
            chosen[wanted] = rng.choice(members, int(wanted.sum()))
    return images[chosen].astype(np.float32), labels[chosen]


def flat_params(seed: int) -> Floats:
    """Return initial parameters: random weights and zero biases."""
    rng = np.random.default_rng([seed, 9])
    parts = [
        rng.standard_normal(FIRST) / PIXELS**0.5,
        np.zeros(WIDTH),
        rng.standard_normal(WIDTH * CLASSES) / WIDTH**0.5,
        np.zeros(CLASSES),
    ]
    return np.concatenate(parts).astype(np.float32)


@numba.njit(fastmath=True, cache=True)
def _local_step(theta: Floats, images: Floats, labels: Any, hidden: Floats, errors: Floats) -> None:
    """Take one step of gradient descent in place, with the mean gradient over the pictures of one user."""
    first, second = theta[:FIRST].reshape(PIXELS, WIDTH), theta[SECOND:THIRD].reshape(WIDTH, CLASSES)
    share = np.float32(LOCAL_RATE / len(labels))
    np.dot(images, first, hidden)
    for i in range(len(labels)):
        for j in range(WIDTH):
            hidden[i, j] = max(hidden[i, j] + theta[FIRST + j], np.float32(0.0))
    np.dot(hidden, second, errors)
    for i in range(len(labels)):
        highest, total = np.float32(-np.inf), np.float32(0.0)
        for k in range(CLASSES):
            errors[i, k] += theta[THIRD + k]
            highest = max(highest, errors[i, k])
        for k in range(CLASSES):
            errors[i, k] = np.exp(errors[i, k] - highest)
            total += errors[i, k]
        for k in range(CLASSES):
            errors[i, k] *= share / total
        errors[i, labels[i]] -= share
    back, into_second = np.dot(errors, second.T), np.dot(hidden.T, errors)
    for i in range(len(labels)):
        for j in range(WIDTH):
            if hidden[i, j] <= 0.0:
                back[i, j] = 0.0
            theta[FIRST + j] -= back[i, j]
        for k in range(CLASSES):
            theta[THIRD + k] -= errors[i, k]
    first -= np.dot(images.T, back)
    second -= into_second


@numba.njit(fastmath=True, cache=True)
def clipped_updates(theta: Floats, images: Floats, labels: Any, clip_norm: float, out: Floats) -> None:
    """Write the sum of the clipped updates of all users to `out`.

    The update of a user is the parameters before the local steps minus the parameters after them.
    """
    out[:] = 0.0
    local = np.empty_like(theta)
    hidden, errors = np.empty((labels.shape[1], WIDTH), np.float32), np.empty((labels.shape[1], CLASSES), np.float32)
    for user in range(len(images)):
        local[:] = theta
        for _ in range(LOCAL_STEPS):
            _local_step(local, images[user], labels[user], hidden, errors)
        square = np.float32(0.0)
        for i in range(local.size):
            local[i] = theta[i] - local[i]
            square += local[i] * local[i]
        weight = min(np.float32(1.0), np.float32(clip_norm) / np.sqrt(square + np.float32(1e-20)))
        for i in range(local.size):
            out[i] += weight * local[i]


class Users:
    """Computes the sum of the clipped updates of the users of a round. Updates take the place of gradients."""

    def __init__(self, images: Floats, labels: np.ndarray, clip_norm: float) -> None:
        self._images, self._labels, self._clip_norm = images, labels, clip_norm

    def gather(self, indices: np.ndarray) -> tuple[Floats, np.ndarray]:
        """Return the images and labels of the users of a round."""
        return self._images[indices], self._labels[indices]

    def clipped_sum(self, theta: Floats, batch: Any, out: Floats) -> None:
        """Write the sum of the clipped updates to `out`, with the sign of a gradient."""
        clipped_updates(theta, *batch, self._clip_norm, out)


def accuracy(theta: Floats, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the fraction of images that are classified correctly."""
    hidden = np.maximum(images @ theta[:FIRST].reshape(PIXELS, WIDTH) + theta[FIRST:SECOND], 0.0)
    logits = hidden @ theta[SECOND:THIRD].reshape(WIDTH, CLASSES) + theta[THIRD:]
    return float((logits.argmax(1) == labels).mean())
