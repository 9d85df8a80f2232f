"""The dual function of the dense problem, which gives a proved lower bound and a corresponding primal point.

For a workload A, the dense problem minimises the error of the strategy C over all feasible X = C^T C. A matrix X is
feasible if the sensitivity is at most 1 and X satisfies the other constraints of the problem. Let w be weights of the
steps in the error. Let U = R R^T be a positive definite matrix, which holds the Lagrange multipliers of the constraints
(see `multipliers`). Every feasible X satisfies

    tr(A^T diag(w) A X^-1) >= (sum of the singular values of diag(w)^1/2 A R)^2 / mass(U).

Here mass(U) is the largest tr(U X) over all feasible X. The matrix
X(U) = R^-T (R^T A^T diag(w) A R)^1/2 R^-1 is called the primal point for U. At the optimal U, X(U) is the optimal X, up
to a factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._optimize.dense.dual_ascent import DualEvaluation
from antiphase._optimize.dense.multipliers import Multipliers, OrthogonalMultipliers, RowWeights
from antiphase._optimize.dense.residue_blocks import Blocks, ResidueClasses, product, spectral_function
from antiphase._optimize.linear_algebra import lower_inverse

EPS = float(np.finfo(float).eps)


class SortedWorkload:
    """A workload with its steps sorted by residue class.

    A residue class consists of the steps in which one example takes part (see `residue_blocks`).

    Args:
        matrix: the workload matrix, A.
        inverse: the bands of A^-1, or None if A^-1 is not banded. The bands make `variances` faster.
        classes: the residue classes.
    """

    def __init__(self, matrix: Array, inverse: Array | None, classes: ResidueClasses) -> None:
        self.classes = classes
        self.columns = np.ascontiguousarray(matrix[:, classes.order])
        self._inverse = inverse
        self._gram = self.columns.T @ self.columns

    def gram(self, rows: RowWeights, weights: Array) -> Array:
        """Return A^T diag(w) A for the weights w of the steps. Its rows and columns are sorted by class."""
        return self._gram / len(weights) if rows.fixed else (self.columns.T * weights) @ self.columns

    def variances(self, factor: Array, sigma: Array) -> Array:
        """Return the noise variances of the steps, the diagonal of A X^-1 A^T, for X^-1 = Y diag(1 / sigma) Y^T.

        Args:
            factor: the matrix Y, with rows sorted by class.
            sigma: positive numbers, one for each column of Y; in `BlockDual`, the singular values.
        """
        from antiphase._kernels import filter_columns

        if self._inverse is None:
            out = self.columns @ factor
        else:
            out = np.empty_like(factor)
            out[self.classes.order] = factor
            filter_columns(out, self._inverse)
        np.square(out, out=out)
        return np.einsum("ti,i->t", out, 1.0 / sigma)


class BlockDual:
    """The dual function for multipliers U that are block diagonal over the residue classes.

    Args:
        workload: the workload matrix, A.
        multipliers: object that maps coordinates to the multiplier U.
        rows: object that maps coordinates to the weights w of the steps.
        rounding: largest fraction by which rounding errors of the eigenvalue decomposition may lower the bound. If they
            would lower it more, the slower singular value decomposition is used instead.
    """

    def __init__(
        self, workload: SortedWorkload, multipliers: Multipliers, rows: RowWeights, rounding: float = 1e-6
    ) -> None:
        self._workload, self._multipliers, self._rows, self._rounding = workload, multipliers, rows, rounding
        self._size = len(multipliers.start())

    def start(self) -> Array:
        """Return the point with U = I and equal weights."""
        return np.concatenate([self._multipliers.start(), self._rows.start()])

    def __call__(self, point: Array) -> DualEvaluation | None:
        """Evaluate the dual function at a point. Returns None if the result is not finite because of rounding."""
        with np.errstate(all="ignore"):
            try:
                found = self._evaluate(point)
            except np.linalg.LinAlgError:
                return None
        finite = found is not None and np.isfinite(found.successor).all() and np.isfinite(found.square)
        return found if finite else None

    def lower_bound(self, point: Array, factor: Array) -> float:
        """Return a proved lower bound on tr(F F^T X^-1) over all feasible X, from the multipliers at a point.

        Args:
            point: coordinates of the multipliers.
            factor: the matrix F, one row for each step; F F^T may be singular.
        """
        classes = self._workload.classes
        root, rows = self._root(point)[0], np.ascontiguousarray(factor[classes.order])
        sigma = np.linalg.svd(classes.times(root, rows), compute_uv=False)
        absolute = classes.times([np.abs(block) for block in root], np.abs(rows))
        slack = 4 * classes.steps * EPS * float(np.linalg.norm(absolute))
        return float(np.maximum(sigma - slack, 0.0).sum()) ** 2 / self._mass(root)

    def _root(self, point: Array) -> tuple[Blocks, Blocks]:
        """Return the square root R of the multiplier U at a point, and U itself."""
        blocks = self._multipliers.blocks(point[: self._size])
        return spectral_function(np.sqrt, blocks), blocks

    def _mass(self, root: Blocks) -> float:
        """Return an upper bound on tr(U X) over all feasible X, for U = R R^T.

        The bound includes an allowance for rounding errors in the product R R^T. The allowance grows with the square of
        the largest number of steps in a class.
        """
        classes = self._workload.classes
        slack = (64 * classes.largest**2 + 16 * classes.steps) * EPS
        return self._multipliers.mass(product(root, root)) * (1.0 + slack)

    def _evaluate(self, point: Array) -> DualEvaluation | None:
        kind, classes = self._multipliers, self._workload.classes
        weights = self._rows.weights(point[self._size :])
        root, blocks = self._root(point)
        inverse_root = spectral_function(lambda values: values**-0.5, blocks)
        mass = self._mass(root)
        found = self._spectrum(root, weights)
        if found is None:
            return None
        sigma, vectors, nuclear = found
        scale = (nuclear / mass) ** 2
        # From here on, U is multiplied by `scale`. This does not change the bound.
        sigma = sigma * math.sqrt(scale)
        root = [block * math.sqrt(scale) for block in root]
        inverse_root = [block / math.sqrt(scale) for block in inverse_root]
        gram = product(inverse_root, classes.inner(vectors, sigma), inverse_root)
        repair = kind.repair(blocks, gram)
        undo: Blocks = [np.linalg.inv(block).astype(np.float64, copy=False) for block in repair]
        variances = self._workload.variances(classes.times(product(undo, root), vectors), sigma)
        state = kind.state(point[: self._size], blocks, scale)
        following = kind.successor(state, [block * scale for block in blocks], gram)
        return DualEvaluation(
            bound=nuclear**2 / mass,
            square=self._rows.value(variances),
            state=np.concatenate([state, self._rows.state(weights)]),
            successor=np.concatenate([following, self._rows.successor(weights, variances)]),
            gram=_gram(classes, product(repair, inverse_root), vectors, sigma),
        )

    def _spectrum(self, root: Blocks, weights: Array) -> tuple[Array, Array, float] | None:
        """Return the singular values and right singular vectors of M = diag(w)^1/2 A R.

        The third result is a lower bound on the sum of the singular values, with an allowance for rounding. Returns
        None if the smallest singular value is not positive.

        If the eigenvalue decomposition of M^T M gives an accurate enough bound, it is used. Otherwise the slower
        singular value decomposition of M is used. Let E be the rounding error of M^T M, and v_i the eigenvalues of
        M^T M. Rounding changes the v_i by d_i with |d|_2 <= |E|_F (Hoffman and Wielandt 1953). So the square root of
        v_i changes by at most |d_i| / sqrt(v_i), and the sum of all square roots by at most |E|_F (sum_i 1 / v_i)^1/2.
        """
        classes = self._workload.classes
        V = self._workload.gram(self._rows, weights)
        absolute = [np.abs(block) for block in root]
        norm = float(np.linalg.norm(_congruence(classes, absolute, np.abs(V))))
        square = _congruence(classes, root, V)
        values, vectors = np.linalg.eigh((square + square.T) / 2.0)
        if values[0] > 0.0:
            sigma = np.sqrt(values)
            rounding = 4 * classes.steps * EPS * norm * float(np.linalg.norm(1.0 / sigma))
            if rounding <= self._rounding * sigma.sum():
                return sigma, vectors, float(sigma.sum()) - rounding
        rows = np.ascontiguousarray((np.sqrt(weights)[:, None] * self._workload.columns).T)
        _, sigma, transposed = np.linalg.svd(classes.times(root, rows).T)
        slack = 4 * classes.steps * EPS * math.sqrt(norm)
        if not sigma[-1] > 0:
            return None
        return sigma, np.ascontiguousarray(transposed.T), float(np.maximum(sigma - slack, 0.0).sum())


class NonnegativeDual:
    """The dual function of the problem in which all entries of X must be non-negative.

    Each entry (i, j) of X with i and j in different residue classes has a multiplier N_ij >= 0. The multiplier of the
    whole problem is U = D - N, where D is block diagonal, like U in `BlockDual`. The coordinates of N are
    N_ij / sqrt(D_ii D_jj). Each iteration subtracts a multiple of the correlations X_ij / sqrt(X_ii X_jj) from these
    coordinates. Negative coordinates count as 0. A point of this function consists of a point of `BlockDual` and the
    coordinates of N.

    Args:
        workload: the workload matrix, A.
        multipliers: object that maps coordinates to the block-diagonal matrix D.
        rows: object that maps coordinates to the weights w of the steps.
    """

    def __init__(self, workload: SortedWorkload, multipliers: OrthogonalMultipliers, rows: RowWeights) -> None:
        self._workload, self._multipliers, self._rows = workload, multipliers, rows
        classes = workload.classes
        self._same = classes.embedded([np.ones_like(block) for block in classes.identity()]) > 0
        self._entries = np.nonzero(np.triu(~self._same))
        self._sizes = np.cumsum([len(multipliers.start()), len(rows.start())])

    def start(self, point: Array) -> Array:
        """Return the point that extends a point of `BlockDual` by N = 0."""
        return np.concatenate([point, np.zeros(len(self._entries[0]))])

    def __call__(self, point: Array) -> DualEvaluation | None:
        """Evaluate the dual function at a point. Returns None if U is not positive definite."""
        with np.errstate(all="ignore"):
            try:
                found = self._evaluate(point)
            except np.linalg.LinAlgError:
                return None
        return found if np.isfinite(found.successor).all() and np.isfinite(found.square) else None

    def _evaluate(self, point: Array) -> DualEvaluation:
        kind, classes, n = self._multipliers, self._workload.classes, self._workload.classes.steps
        parameters, row_point, entries = np.split(point, self._sizes)
        blocks, weights = kind.blocks(parameters), self._rows.weights(row_point)
        U = classes.embedded(blocks)
        N = self._symmetric(np.maximum(entries, 0.0)) * np.sqrt(np.outer(np.diag(U), np.diag(U)))
        R = np.linalg.cholesky(U - N)
        M = np.sqrt(weights)[:, None] * (self._workload.columns @ R)
        _, sigma, transposed = np.linalg.svd(M)
        # Allow for rounding errors: R R^T differs from D - N (here `U - N`), which changes its trace with X, and the
        # singular values are inexact.
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
        moved = np.maximum(entries, 0.0) - 0.1 * correlations  # a projected gradient step of size 0.1
        return DualEvaluation(
            bound=nuclear**2 / mass,
            square=self._rows.value(variances),
            state=np.concatenate([state, self._rows.state(weights), entries]),
            successor=np.concatenate([following, self._rows.successor(weights, variances), moved]),
            gram=lambda: classes.in_order(feasible),
        )

    def _feasible(self, X: Array) -> tuple[Array, Array]:
        """Return a feasible matrix near X, and the noise variances of the steps for it.

        The entries of X are clipped at 0 and scaled, and X is mixed with its diagonal in several proportions. Among the
        mixtures that are positive definite, the result has the smallest error.
        """
        clipped = np.where(self._same, 0.0, np.maximum(X, 0.0))
        scales = np.sqrt(self._multipliers.columns(np.diag(X)) / np.diag(X))
        clipped *= scales[:, None] * scales
        diagonal = np.diag(X) * scales**2
        best: tuple[float, Array, Array] | None = None
        for diagonal_share in (0.0, 1e-6, 1e-4, 1e-2, 0.03, 0.1, 0.3, 1.0):
            mixed = (1.0 - diagonal_share) * clipped
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


def _congruence(classes: ResidueClasses, root: Blocks, V: Array) -> Array:
    """Return R^T V R for symmetric blocks R."""
    return classes.times(root, classes.times(root, V).T)


def _gram(classes: ResidueClasses, factor: Blocks, vectors: Array, sigma: Array) -> Callable[[], Array]:
    """Return a function that computes the primal point X. This function is called for the best point only."""

    def make() -> Array:
        Z = classes.times(factor, vectors)
        return classes.in_order((Z * sigma) @ Z.T)

    return make
