"""The dual of the dense problem: its value, a proved lower bound, and the primal point that belongs to it.

For weights w of the steps and a multiplier U = R R^T, every feasible X has

    tr(A^T diag(w) A X^-1) >= (sum of the singular values of diag(w)^1/2 A R)^2 / mass(U),

where mass(U) is the largest tr(U X) for feasible X; the point that goes with U is
X(U) = R^-T (R^T A^T diag(w) A R)^1/2 R^-1.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._optimize._ascent import Evaluation
from antiphase._optimize._classes import Blocks, Classes, product, spectral
from antiphase._optimize._multipliers import Multipliers, RowWeights

EPS = float(np.finfo(float).eps)


class ClassedWorkload:
    """A workload with its steps sorted by class.

    Args:
        matrix: A.
        inverse: the bands of A^-1.
        classes: the residue classes.
    """

    def __init__(self, matrix: Array, inverse: Array, classes: Classes) -> None:
        self.classes = classes
        self.columns = np.ascontiguousarray(matrix[:, classes.order])
        self._inverse = inverse
        self._gram = self.columns.T @ self.columns

    def gram(self, rows: RowWeights, weights: Array) -> Array:
        """V = A^T diag(w) A."""
        return self._gram / len(weights) if rows.fixed else (self.columns.T * weights) @ self.columns

    def variances(self, factor: Array, sigma: Array) -> Array:
        """The diagonal of A Y diag(1 / sigma) Y^T A^T for Y = factor, rows sorted by class."""
        from antiphase._kernels.covariance import filter_columns

        out = np.empty_like(factor)
        out[self.classes.order] = factor
        filter_columns(out, self._inverse)
        np.square(out, out=out)
        return np.einsum("ti,i->t", out, 1.0 / sigma)


class BlockDual:
    """The dual function for multipliers that are block diagonal over the classes.

    Args:
        workload: A.
        multipliers: the coordinates of U.
        rows: the weights w.
        rounding: share of the bound that rounding may cost; where it would be more, the slower singular values serve.
    """

    def __init__(
        self, workload: ClassedWorkload, multipliers: Multipliers, rows: RowWeights, rounding: float = 1e-6
    ) -> None:
        self._workload, self._multipliers, self._rows, self._rounding = workload, multipliers, rows, rounding
        self._size = len(multipliers.start())

    def start(self) -> Array:
        """U = I and equal weights."""
        return np.concatenate([self._multipliers.start(), self._rows.start()])

    def __call__(self, point: Array) -> Evaluation | None:
        """Bound, loss and successor; None where rounding leaves nothing."""
        with np.errstate(all="ignore"):
            try:
                found = self._evaluate(point)
            except np.linalg.LinAlgError:
                return None
        finite = found is not None and np.isfinite(found.successor).all() and np.isfinite(found.square)
        return found if finite else None

    def _evaluate(self, point: Array) -> Evaluation | None:
        kind, classes = self._multipliers, self._workload.classes
        blocks, weights = kind.blocks(point[: self._size]), self._rows.weights(point[self._size :])
        root, inverse_root = spectral(np.sqrt, blocks), spectral(lambda values: values**-0.5, blocks)
        # The bound is for U = R R^T as rounded; what that differs from the blocks is of the order of k^2 roundings.
        mass = kind.mass(product(root, root)) * (1.0 + (64 * classes.largest**2 + 16 * classes.steps) * EPS)
        found = self._spectrum(root, weights)
        if found is None:
            return None
        sigma, vectors, nuclear = found
        scale = (nuclear / mass) ** 2
        # From here on U is scaled to the best multiple, which leaves the bound as it is.
        sigma = sigma * math.sqrt(scale)
        root = [block * math.sqrt(scale) for block in root]
        inverse_root = [block / math.sqrt(scale) for block in inverse_root]
        gram = product(inverse_root, classes.inner(vectors, sigma), inverse_root)
        repair = kind.repair(blocks, gram)
        undo: Blocks = [np.linalg.inv(block).astype(np.float64, copy=False) for block in repair]
        variances = self._workload.variances(classes.times(product(undo, root), vectors), sigma)
        state = kind.state(point[: self._size], blocks, scale)
        following = kind.successor(state, [block * scale for block in blocks], gram)
        return Evaluation(
            bound=nuclear**2 / mass,
            square=self._rows.value(variances),
            state=np.concatenate([state, self._rows.state(weights)]),
            successor=np.concatenate([following, self._rows.successor(weights, variances)]),
            gram=_gram(classes, product(repair, inverse_root), vectors, sigma),
        )

    def _spectrum(self, root: Blocks, weights: Array) -> tuple[Array, Array, float] | None:
        """Singular values and right vectors of M = diag(w)^1/2 A R, and a lower bound on the sum of the values.

        They come from M^T M where that is accurate enough. Rounding changes it by a matrix E, and the eigenvalues v_i
        by d_i with |d|_2 <= |E|_F (Hoffman and Wielandt 1953); a root then moves by at most |d_i| / sqrt(v_i), all of
        them together by at most |E|_F (sum of 1 / v_i)^1/2.
        """
        classes = self._workload.classes
        V = self._workload.gram(self._rows, weights)
        absolute = [np.abs(block) for block in root]
        norm = float(np.linalg.norm(_between(classes, absolute, np.abs(V))))
        M = _between(classes, root, V)
        values, vectors = np.linalg.eigh((M + M.T) / 2.0)
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


def _between(classes: Classes, root: Blocks, V: Array) -> Array:
    """R^T V R for symmetric blocks R."""
    return classes.times(root, classes.times(root, V).T)


def _gram(classes: Classes, factor: Blocks, vectors: Array, sigma: Array) -> Callable[[], Array]:
    def make() -> Array:
        Z = classes.times(factor, vectors)
        return classes.in_order((Z * sigma) @ Z.T)

    return make
