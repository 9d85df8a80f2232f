"""The curvatures of a model: products with its Gauss-Newton matrix, and a histogram of the spectrum of this matrix.

Some mechanisms of the training benchmark are optimised for these curvatures. As in NoiseCurve (Gu et al. 2025, arXiv
2510.05416), the noise is banded, and the curvatures are estimated from public data without labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks._student_numpy import SPLIT, views, with_ones

Array = np.ndarray[Any, np.dtype[np.float64]]


def binned(nodes: Array, weights: Array, low: float, bins: int = 30) -> tuple[Array, Array]:
    """Return the mean curvature of each bin of the spectrum, and the weight of each bin.

    The weight of a bin is proportional to curvature x density of the spectrum, and all weights sum to 1. The weights
    describe how the excess loss is distributed over directions. Curvatures up to `low` are left out, because their
    weight is negligible.

    Args:
        nodes: curvatures that represent the spectrum.
        weights: the fraction of the directions that each node represents.
        low: lower end of the first bin.
        bins: number of bins.
    """
    kept = nodes > low
    share = (weights * nodes)[kept]
    edges = np.geomspace(low, nodes.max() * (1 + 1e-9), bins + 1)
    where = np.searchsorted(edges, nodes[kept]) - 1
    total = np.bincount(where, share, bins)
    middle = np.exp(np.bincount(where, share * np.log(nodes[kept]), bins)[total > 0] / total[total > 0])
    return middle, total[total > 0] / total.sum()


def gauss_newton_product(theta: Array, images: np.ndarray, clip_norm: float) -> Callable[[Array], Array]:
    """Return the function v -> G v, where G is the Gauss-Newton matrix of the network of `_student_numpy.py`.

    G is the mean of w J^T (diag(p) - p p^T) J over the images. Here J is the Jacobian of the logits, p are the
    predicted probabilities, and w is the factor by which clipping shortens the gradient of an image. Labels are needed
    only for w. They are drawn from the model's own predictions.
    """
    theta = theta.astype(np.float64)
    w, v = views(theta)
    x = with_ones(images).astype(np.float64)
    before = x @ w
    hidden = np.concatenate([np.maximum(before, 0.0), np.ones((len(x), 1))], axis=1)
    active = before > 0
    odds = np.exp((hidden @ v) - (hidden @ v).max(1, keepdims=True))
    odds /= odds.sum(1, keepdims=True)
    rng = np.random.default_rng(3)
    labels = (rng.random((len(x), 1)) > np.cumsum(odds, axis=1)).sum(1).clip(0, odds.shape[1] - 1)
    errors = odds - np.eye(odds.shape[1])[labels]
    by_hidden = (errors @ v[:-1].T) * active
    square = (errors**2).sum(1) * (hidden**2).sum(1) + (by_hidden**2).sum(1) * (x**2).sum(1)
    weight = np.minimum(1.0, clip_norm / np.sqrt(square + 1e-20))[:, None] / len(x)

    def product(direction: Array) -> Array:
        dw, dv = views(direction)
        change = ((x @ dw) * active) @ v[:-1] + hidden @ dv
        back = weight * (odds * change - odds * (odds * change).sum(1, keepdims=True))
        out = np.empty_like(direction)
        out[:SPLIT] = (x.T @ ((back @ v[:-1].T) * active)).reshape(-1)
        out[SPLIT:] = (hidden.T @ back).reshape(-1)
        return out

    return product
