"""Brute force: every pattern, and for each the worst vector contributions between two numbers.

Nothing here is shared with the library: the contributions are found by coordinate ascent on unit vectors (each vector
turns towards the weighted sum of the others), and proved by the multipliers of the point where it stops.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from antiphase._participation import Deterministic
from antiphase.strategies import Strategy

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """The squared sensitivity lies between these."""

    low: float
    high: float


def worst_vectors(X: Matrix, starts: int = 4, seed: int = 0) -> Truth:
    """max sum_ij X_ij <g_i, g_j> over vectors of norm 1."""
    if (X >= 0).all() or len(X) <= 2:
        total = float(np.abs(X).sum())
        return Truth(total, total)
    rng = np.random.default_rng(seed)
    k = len(X)
    vectors = rng.normal(size=(starts, k, k + 1))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    off = X - np.diag(np.diag(X))
    for _ in range(4000):
        before = vectors.copy()
        for i in range(k):
            pull = np.einsum("j,sjd->sd", off[i], vectors)
            norm = np.linalg.norm(pull, axis=1, keepdims=True)
            vectors[:, i] = np.where(norm > 0, pull / np.maximum(norm, 1e-300), vectors[:, i])
        if np.abs(vectors - before).max() < 1e-13:
            break
    return Truth(_attained(X, vectors), _dual(X, vectors))


def _attained(X: Matrix, vectors: Matrix) -> float:
    return float(np.einsum("sid,ij,sjd->s", vectors, X, vectors).max())


def _dual(X: Matrix, vectors: Matrix) -> float:
    """y_i = <g_i, sum_j X_ij g_j>, raised until Diag(y) - X is positive semidefinite; sum(y) bounds the value."""
    bounds = []
    for g in vectors:
        y = np.einsum("id,ij,jd->i", g, X, g)
        bounds.append(y.sum() + len(y) * max(0.0, -np.linalg.eigvalsh(np.diag(y) - X)[0]))
    return float(min(bounds))


def squared_sensitivity(strategy: Strategy, participation: Deterministic) -> Truth:
    """Over all patterns."""
    C = strategy.encoder()
    X = C.T @ C
    found = [worst_vectors(X[np.ix_(p, p)]) for p in participation.patterns(strategy.steps)]
    return Truth(max(t.low for t in found), max(t.high for t in found))


def signed_value(strategy: Strategy, participation: Deterministic) -> float:
    """The largest ||C u||^2 over patterns for u = +1 or -1: contributions that are numbers."""
    C = strategy.encoder()
    best = 0.0
    for pattern in participation.patterns(strategy.steps):
        signs = np.array(list(product([-1.0, 1.0], repeat=len(pattern))))
        best = max(best, float(((signs @ C[:, list(pattern)].T) ** 2).sum(axis=1).max()))
    return best
