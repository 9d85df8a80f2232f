"""The dual of the dense problem with X >= 0 in every entry.

Each entry (i, j) of different classes has a multiplier N_ij >= 0, and U = (block diagonal) - N. Block and N are
kept in coordinates relative to the diagonals of U and X; N is moved against X and cut off at 0.
"""

from __future__ import annotations

import math

import numpy as np

from antiphase._check import Array
from antiphase._optimize._ascent import Evaluation
from antiphase._optimize._dual import EPS, ClassedWorkload
from antiphase._optimize._multipliers import OrthogonalMultipliers, RowWeights
from antiphase._optimize._triangular import lower_inverse

STEP = 0.1
SHARES = (0.0, 1e-6, 1e-4, 1e-2, 0.03, 0.1, 0.3, 1.0)


class NonnegativeDual:
    """The dual function; a point is the point of the block dual followed by the multipliers of the entries."""

    def __init__(self, workload: ClassedWorkload, multipliers: OrthogonalMultipliers, rows: RowWeights) -> None:
        self._workload, self._multipliers, self._rows = workload, multipliers, rows
        classes = workload.classes
        self._same = classes.embedded([np.ones_like(block) for block in classes.identity()]) > 0
        self._entries = np.nonzero(np.triu(~self._same))
        self._sizes = np.cumsum([len(multipliers.start()), len(rows.start())])

    def start(self, point: Array) -> Array:
        """From a point of the block dual, with N = 0."""
        return np.concatenate([point, np.zeros(len(self._entries[0]))])

    def __call__(self, point: Array) -> Evaluation | None:
        """Bound, loss and successor; None where U is not positive definite."""
        with np.errstate(all="ignore"):
            try:
                found = self._evaluate(point)
            except np.linalg.LinAlgError:
                return None
        return found if np.isfinite(found.successor).all() and np.isfinite(found.square) else None

    def _evaluate(self, point: Array) -> Evaluation:
        kind, classes, n = self._multipliers, self._workload.classes, self._workload.classes.steps
        parameters, row_point, entries = np.split(point, self._sizes)
        blocks, weights = kind.blocks(parameters), self._rows.weights(row_point)
        U = classes.embedded(blocks)
        N = self._symmetric(np.maximum(entries, 0.0)) * np.sqrt(np.outer(np.diag(U), np.diag(U)))
        R = np.linalg.cholesky(U - N)
        M = np.sqrt(weights)[:, None] * (self._workload.columns @ R)
        _, sigma, transposed = np.linalg.svd(M)
        # R R^T differs from U by rounding: what that can add to tr(U X), and the rounding of the singular values.
        norm = float((np.abs(R) @ (np.abs(R.T) @ np.ones(n))).max())
        mass = kind.mass(blocks) * (1.0 + 16 * n * EPS) + 4 * n * EPS * norm * sum(map(len, blocks))
        nuclear = float(np.maximum(sigma - 4 * n * EPS * np.linalg.norm(M), 0.0).sum())
        scale = (nuclear / mass) ** 2
        Z = lower_inverse(R).T @ transposed.T
        X = (Z * sigma) @ Z.T / math.sqrt(scale)
        feasible, variances = self._feasible(X)
        state = kind.state(parameters, blocks, scale)
        following = kind.successor(state, [block * scale for block in blocks], classes.restricted(X))
        correlations = X[self._entries] / np.sqrt(np.outer(np.diag(X), np.diag(X))[self._entries])
        moved = np.maximum(entries, 0.0) - STEP * correlations
        return Evaluation(
            bound=nuclear**2 / mass,
            square=self._rows.value(variances),
            state=np.concatenate([state, self._rows.state(weights), entries]),
            successor=np.concatenate([following, self._rows.successor(weights, variances), moved]),
            gram=lambda: classes.in_order(feasible),
        )

    def _feasible(self, X: Array) -> tuple[Array, Array]:
        """X cut off at 0, scaled, and mixed with its diagonal: the best of the mixtures that are positive definite."""
        cut = np.where(self._same, 0.0, np.maximum(X, 0.0))
        scales = np.sqrt(self._multipliers.columns(np.diag(X)) / np.diag(X))
        cut *= scales[:, None] * scales
        diagonal = np.diag(X) * scales**2
        best: tuple[float, Array, Array] | None = None
        for share in SHARES:
            mixed = (1.0 - share) * cut
            np.fill_diagonal(mixed, diagonal)
            try:
                L = np.linalg.cholesky(mixed)
            except np.linalg.LinAlgError:
                continue
            variances = self._workload.variances(np.ascontiguousarray(lower_inverse(L).T), np.ones(len(L)))
            square = self._rows.value(variances)
            if best is None or square < best[0]:
                best = square, mixed, variances
        if best is None:
            raise np.linalg.LinAlgError
        return best[1:]

    def _symmetric(self, entries: Array) -> Array:
        out = np.zeros((self._workload.classes.steps,) * 2)
        out[self._entries] = entries
        return out + out.T
