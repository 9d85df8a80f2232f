"""Softmax regression on scikit-learn's digits. Each user holds a few of the digits."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Model = list[NDArray[np.float32]]
HELD_OUT = 297
LOCAL_RATE = 0.5
LOCAL_STEPS = 5


@cache
def data() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return images with pixels in [0, 1] and their labels, in a fixed random order."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return (images[order] / 16.0).astype(np.float32), labels[order]


def fresh_model() -> Model:
    """Return the initial model, which is all zeros."""
    return [np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]


def of_user(user: int, users: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the digits of one user. The last HELD_OUT digits belong to no user."""
    images, labels = data()
    return images[: -HELD_OUT or None][user::users], labels[: -HELD_OUT or None][user::users]


def probabilities(model: Model, images: NDArray[np.float32]) -> NDArray[np.float32]:
    scores = images @ model[0] + model[1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def trained(model: Model, images: NDArray[np.float32], labels: NDArray[np.int64]) -> Model:
    """Return the model after LOCAL_STEPS steps of gradient descent."""
    weights, bias = (array.copy() for array in model)
    for _ in range(LOCAL_STEPS):
        error = probabilities([weights, bias], images) - np.eye(10, dtype=np.float32)[labels]
        weights -= LOCAL_RATE * images.T @ error / len(labels)
        bias -= LOCAL_RATE * error.mean(axis=0)
    return [weights, bias]


def accuracy(model: Model) -> float:
    """Return the accuracy on the held-out digits."""
    images, labels = data()
    return float((probabilities(model, images[-HELD_OUT:]).argmax(axis=1) == labels[-HELD_OUT:]).mean())
