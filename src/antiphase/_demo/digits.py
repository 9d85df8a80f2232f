"""The handwritten digits of scikit-learn (1,797 examples), and softmax regression with per-example clipping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from antiphase._check import Array
from antiphase._errors import Refused

TEST_EVERY = 5  # every fifth example is held out for testing
CLASSES = 10

Model = list[Array]  # weights of shape (pixels, classes) and biases of shape (classes,)


@dataclass(frozen=True)
class Digits:
    """Images of shape (examples, 64), with pixels between 0 and 1, and their labels from 0 to 9."""

    images: Array
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits]:
    """Return 1,437 training examples and 360 test examples. Nothing is downloaded."""
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise Refused(
            "The demo uses the digits data set of scikit-learn, which is not installed.",
            hint="pip install 'antiphase[demo]', or pip install scikit-learn",
        ) from error
    data: Any = load()
    images, labels = data.data / 16.0, data.target.astype(np.int64)
    test = np.arange(len(labels)) % TEST_EVERY == 0
    return Digits(images[~test], labels[~test]), Digits(images[test], labels[test])


def zero_model(pixels: int) -> Model:
    """Return the initial model of every run, which is all zeros. The loss is convex, so any start is valid."""
    return [np.zeros((pixels, CLASSES)), np.zeros(CLASSES)]


def clipped_sum(model: Model, batch: Digits, clip_norm: float) -> Model:
    """Clip the gradient of each example in the batch to norm `clip_norm`, and return the sum.

    The gradient of one example is the outer product of two vectors: the pixels with a 1 appended for the bias, and
    (probabilities - one-hot label). The norm of the gradient is the product of the norms of these two vectors, so no
    per-example gradient is stored.
    """
    residual = _probabilities(model, batch.images)
    residual[np.arange(len(batch)), batch.labels] -= 1.0
    norms = np.sqrt((residual**2).sum(1) * ((batch.images**2).sum(1) + 1.0))
    residual *= np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))[:, None]
    return [batch.images.T @ residual, residual.sum(0)]


def accuracy(model: Model, data: Digits) -> float:
    """Return the fraction of examples whose most likely class is their label."""
    weights, biases = model
    return float(((data.images @ weights + biases).argmax(1) == data.labels).mean())


def _probabilities(model: Model, images: Array) -> Array:
    weights, biases = model
    scores = images @ weights + biases
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(scores / scores.sum(1, keepdims=True))
