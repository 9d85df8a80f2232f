"""Finds the worst contributions to one pattern with a small semidefinite program, and proves a bound.

A pattern is a set of steps in which one example takes part.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._sensitivity.bracket import Bracket

DUALITY_GAP = 1e-10  # relative duality gap at which the Newton steps stop
BARRIER_SHRINK = 0.1  # factor by which the barrier parameter mu shrinks after each centring
MOST_NEWTON_STEPS = 400
ASCENT_SWEEPS = 20  # sweeps of coordinate ascent that improve the lower bound


def worst_contributions(X: Array) -> tuple[Bracket, Array]:
    """Return proved bounds on the maximum of tr(X K) over correlation matrices K, and the dual solution y.

    If X is the Gram matrix C^T C, restricted to the steps of a pattern, the maximum is the squared sensitivity of the
    pattern, because K is the Gram matrix of contributions of norm 1 in these steps. The dual problem minimises sum(y)
    under the condition that S = Diag(y) - X is positive semidefinite. Damped Newton steps minimise
    sum(y) - mu log det(S) while mu decreases towards 0. The matrix mu S^-1 then tends to the optimal K.

    **Guarantee**: the upper bound is sum(y) for a y that is feasible despite rounding. To ensure this, the smallest
    eigenvalue of S is checked, and y is raised if necessary. The lower bound is tr(X K) for a K that is scaled to a
    unit diagonal.

    >>> import numpy as np
    >>> C = np.array([[2, 1, 1], [1, 2, -1], [1, -1, 2]]) / np.sqrt(24)
    >>> round(worst_contributions(C.T @ C)[0].upper, 8)
    1.125
    """
    scale = float(np.trace(X)) / len(X)
    y = _central_path(X / scale)
    upper = y * scale + _missing(y * scale, X)
    return Bracket(_primal_value(y, X / scale) * scale, float(upper.sum())), upper


def _central_path(X: Array) -> Array:
    k = len(X)
    y = np.abs(X).sum(axis=1) + 0.1
    mu = float(y.sum()) / k
    for _ in range(MOST_NEWTON_STEPS):
        try:
            factor = np.linalg.inv(np.linalg.cholesky(np.diag(y) - X))
            inverse = factor.T @ factor
            gradient = 1.0 / mu - np.diag(inverse)
            step = np.linalg.solve(inverse * inverse, -gradient)
        except np.linalg.LinAlgError:  # y is as close to the boundary as rounding allows
            break
        decrement = math.sqrt(max(-float(gradient @ step), 0.0))
        y = y + (step if decrement < 0.25 else step / (1.0 + decrement))
        if decrement < 0.1:
            if k * mu <= DUALITY_GAP * y.sum():
                break
            mu *= BARRIER_SHRINK
    return y


def _missing(y: Array, X: Array) -> float:
    """Return the number to add to every entry of y so that Diag(y) - X is positive semidefinite despite rounding."""
    S = np.diag(y) - X
    rounding = 4 * len(y) * np.finfo(float).eps * float(np.abs(S).sum(axis=1).max())
    return max(rounding - float(np.linalg.eigvalsh(S)[0]), 0.0)


def _primal_value(y: Array, X: Array) -> float:
    """Return the larger of tr(X K), for K = S^-1 scaled to a unit diagonal, and tr(X), the value for K = I.

    Here S = Diag(y) - X. Rounding errors in S reduce tr(X K) by about 1e-8. To make up for this, K is written as the
    Gram matrix of unit vectors, and a few sweeps of coordinate ascent change these vectors. The sweeps can only raise
    the value.
    """
    values, vectors = np.linalg.eigh(np.diag(y) - X)
    root = vectors / np.sqrt(np.maximum(values, np.finfo(float).eps * values[-1]))
    root /= np.linalg.norm(root, axis=1, keepdims=True)
    for _ in range(ASCENT_SWEEPS):
        for i in range(len(X)):
            pull = X[i] @ root - X[i, i] * root[i]
            root[i] = pull / norm if (norm := np.linalg.norm(pull)) > 0 else root[i]
    return max(float(np.sum(root * (X @ root))), float(np.trace(X)))
