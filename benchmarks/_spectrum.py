"""The curvature spectrum of a model, estimated by Lanczos from random starts (stochastic Lanczos quadrature).

For the row that follows NoiseCurve (Gu et al. 2025, arXiv 2510.05416): banded noise for curvatures that were estimated
from public data without labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import eigh_tridiagonal

from benchmarks._student_numpy import SPLIT, views, with_ones

Array = np.ndarray[Any, np.dtype[np.float64]]


def lanczos_spectrum(
    product: Callable[[Array], Array], size: int, probes: int, iterations: int, seed: int
) -> tuple[Array, Array]:
    """Nodes and weights that stand for the eigenvalues of a symmetric matrix; the weights sum to 1.

    sum_i weights_i f(nodes_i) estimates the mean of f over all eigenvalues, exactly for one probe per polynomial of
    degree below 2 x iterations. Each new vector is made orthogonal to all earlier ones.
    """
    rng = np.random.default_rng(seed)
    nodes, weights = [], []
    for _ in range(probes):
        start = rng.standard_normal(size)
        basis = [start / np.linalg.norm(start)]
        diagonal: list[float] = []
        beside: list[float] = []
        for _ in range(min(iterations, size)):
            image = product(basis[-1])
            diagonal.append(float(image @ basis[-1]))
            known = np.array(basis)
            for _ in range(2):
                image = image - known.T @ (known @ image)
            norm = float(np.linalg.norm(image))
            if norm < 1e-9 * max(map(abs, diagonal)) or len(diagonal) == min(iterations, size):
                break
            beside.append(norm)
            basis.append(image / norm)
        values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
        nodes.append(values)
        weights.append(vectors[0] ** 2 / probes)
    return np.concatenate(nodes), np.concatenate(weights)


def binned(nodes: Array, weights: Array, low: float, bins: int = 30) -> tuple[Array, Array]:
    """Few curvatures with weights curvature x density, which sum to 1: the excess loss by direction.

    Curvatures below `low` are forgotten by no run and weigh next to nothing; they are left out.
    """
    kept = nodes > low
    share = (weights * nodes)[kept]
    edges = np.geomspace(low, nodes.max() * (1 + 1e-9), bins + 1)
    where = np.searchsorted(edges, nodes[kept]) - 1
    total = np.bincount(where, share, bins)
    middle = np.exp(np.bincount(where, share * np.log(nodes[kept]), bins)[total > 0] / total[total > 0])
    return middle, total[total > 0] / total.sum()


def gauss_newton_product(theta: Array, images: np.ndarray, clip_norm: float) -> Callable[[Array], Array]:
    """v -> G v for the student of `_student_numpy.py`: the curvature of the mean of its clipped gradients.

    G = mean of w J^T (diag(p) - p p^T) J over the images, which needs no labels. The factor w, by which clipping
    shortens a gradient, is that of labels drawn from the model's own predictions.
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
