"""Users with a few pictures each, of few kinds: local steps on a device, and the clipped updates that a server sums.

The pictures and labels are those of `examples/teacher_images.py`. A user's labels are drawn from a distribution of the
user's own (Dirichlet with parameter 0.3), so that users differ much.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

PIXELS, WIDTH, CLASSES = 64, 24, 10
PICTURES, LOCAL_STEPS, LOCAL_RATE = 8, 3, 0.25
SKEW = 0.3
FIRST = PIXELS * WIDTH
SECOND = FIRST + WIDTH
THIRD = SECOND + WIDTH * CLASSES
PARAMETERS = THIRD + CLASSES
Floats = np.ndarray[Any, np.dtype[np.float32]]


def make_users(images: np.ndarray, labels: np.ndarray, users: int) -> tuple[Floats, np.ndarray]:
    """(pictures, labels) of every user, of shapes (users, PICTURES, PIXELS) and (users, PICTURES)."""
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
    """Random weights, and zeros for the biases."""
    rng = np.random.default_rng([seed, 9])
    parts = [
        rng.standard_normal(FIRST) / PIXELS**0.5,
        np.zeros(WIDTH),
        rng.standard_normal(WIDTH * CLASSES) / WIDTH**0.5,
        np.zeros(CLASSES),
    ]
    return np.concatenate(parts).astype(np.float32)


@numba.njit(fastmath=True, cache=True)
def _gradient(theta: Floats, images: Floats, labels: Any, out: Floats, hidden: Floats, back: Floats) -> None:
    """Write the mean gradient over the pictures of one user to `out`."""
    out[:] = 0.0
    errors = np.empty(CLASSES, np.float32)
    share = np.float32(1.0 / len(labels))
    for i in range(len(labels)):
        hidden[:] = theta[FIRST:SECOND]
        for p in range(PIXELS):
            x, row = images[i, p], theta[p * WIDTH : (p + 1) * WIDTH]
            for j in range(WIDTH):
                hidden[j] += x * row[j]
        for j in range(WIDTH):
            hidden[j] = max(hidden[j], np.float32(0.0))
        errors[:] = theta[THIRD:]
        for j in range(WIDTH):
            for k in range(CLASSES):
                errors[k] += hidden[j] * theta[SECOND + j * CLASSES + k]
        highest, total = errors.max(), np.float32(0.0)
        for k in range(CLASSES):
            errors[k] = np.exp(errors[k] - highest)
            total += errors[k]
        for k in range(CLASSES):
            errors[k] *= share / total
        errors[labels[i]] -= share
        for j in range(WIDTH):
            value = np.float32(0.0)
            for k in range(CLASSES):
                value += errors[k] * theta[SECOND + j * CLASSES + k]
                out[SECOND + j * CLASSES + k] += hidden[j] * errors[k]
            back[j] = value if hidden[j] > 0.0 else np.float32(0.0)
            out[FIRST + j] += back[j]
        for p in range(PIXELS):
            x, row = images[i, p], out[p * WIDTH : (p + 1) * WIDTH]
            for j in range(WIDTH):
                row[j] += x * back[j]
        for k in range(CLASSES):
            out[THIRD + k] += errors[k]


@numba.njit(fastmath=True, cache=True)
def clipped_updates(theta: Floats, images: Floats, labels: Any, clip_norm: float, out: Floats) -> None:
    """Write the sum over users of start minus end of their local steps, each clipped, to `out`."""
    out[:] = 0.0
    local, gradient = np.empty_like(theta), np.empty_like(theta)
    hidden, back = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.float32)
    for user in range(len(images)):
        local[:] = theta
        for _ in range(LOCAL_STEPS):
            _gradient(local, images[user], labels[user], gradient, hidden, back)
            for i in range(local.size):
                local[i] -= np.float32(LOCAL_RATE) * gradient[i]
        square = np.float32(0.0)
        for i in range(local.size):
            local[i] = theta[i] - local[i]
            square += local[i] * local[i]
        weight = min(np.float32(1.0), np.float32(clip_norm) / np.sqrt(square + np.float32(1e-20)))
        for i in range(local.size):
            out[i] += weight * local[i]


class Users:
    """The clipped updates of users; what the server descends along."""

    def __init__(self, images: Floats, labels: np.ndarray, clip_norm: float) -> None:
        self._images, self._labels, self._clip_norm = images, labels, clip_norm

    def gather(self, indices: np.ndarray) -> tuple[Floats, np.ndarray]:
        """The data of the users of a round."""
        return self._images[indices], self._labels[indices]

    def clipped_sum(self, theta: Floats, batch: Any, out: Floats) -> None:
        """Write the sum of the clipped updates to `out`, with the sign of a gradient."""
        clipped_updates(theta, *batch, self._clip_norm, out)


def accuracy(theta: Floats, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of pictures that are labelled right."""
    hidden = np.maximum(images @ theta[:FIRST].reshape(PIXELS, WIDTH) + theta[FIRST:SECOND], 0.0)
    logits = hidden @ theta[SECOND:THIRD].reshape(WIDTH, CLASSES) + theta[THIRD:]
    return float((logits.argmax(1) == labels).mean())
