"""Softmax regression in NumPy, with the gradient of every example clipped on its own."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._demo._digits import Digits

CLASSES = 10

Model = list[Array]  # weights (pixels, classes) and offsets (classes)


def zero_model(pixels: int) -> Model:
    """The start of every run: the problem is convex."""
    return [np.zeros((pixels, CLASSES)), np.zeros(CLASSES)]


def clipped_sum(model: Model, batch: Digits, clip_norm: float) -> Model:
    """The sum over the batch of gradients scaled down to norm `clip_norm` where they are larger.

    The gradient of one example is the outer product of (pixels, 1) with (probabilities - label), so that its norm is
    the product of two norms and no gradient is ever formed for one example alone.
    """
    residual = _probabilities(model, batch.images)
    residual[np.arange(len(batch)), batch.labels] -= 1.0
    norms = np.sqrt((residual**2).sum(1) * ((batch.images**2).sum(1) + 1.0))
    residual *= np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))[:, None]
    return [batch.images.T @ residual, residual.sum(0)]


def accuracy(model: Model, data: Digits) -> float:
    """The share of examples whose most likely class is their label."""
    weights, offsets = model
    return float(((data.images @ weights + offsets).argmax(1) == data.labels).mean())


def _probabilities(model: Model, images: Array) -> Array:
    weights, offsets = model
    scores = images @ weights + offsets
    scores = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray(scores / scores.sum(1, keepdims=True))
