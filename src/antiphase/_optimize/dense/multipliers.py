"""Multipliers of the constraints of the dense problem, and the fixed-point maps that find the optimal multipliers.

The dense problem minimises the error of a strategy C over all feasible X = C^T C. A residue class r consists of the
steps in which one example takes part, and X_r is the block of X for these steps. In each of the steps, the example
contributes a vector of norm 1. Let K hold the inner products of these vectors. K can be any correlation matrix, and the
constraint on the sensitivity is tr(X_r K) <= 1 for every K. So the Lagrange multiplier U_r of this constraint is v_r K
with a number v_r >= 0 and some K: it can be any positive semidefinite matrix with constant diagonal. The multipliers of
the constraint "X_r is diagonal with trace 1" are the same matrices.

All multipliers together form a block-diagonal matrix U with blocks U_r. The Python classes of this module map a point,
which is a vector of unconstrained coordinates, to U.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product as combinations
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase._objective import Objective
from antiphase._optimize.dense.residue_blocks import (
    Blocks,
    ResidueClasses,
    diagonals,
    flatten,
    product,
    scaled,
    spectral_function,
    unflatten,
)

MIN_LOG_MULTIPLIER = -25.0  # smallest logarithm of a multiplier relative to the largest one


class Multipliers(ABC):
    """Base class: maps unconstrained coordinates to multipliers U that are block diagonal over the residue classes."""

    def __init__(self, classes: ResidueClasses) -> None:
        self.classes = classes

    @abstractmethod
    def start(self) -> Array:
        """Return the coordinates of U = I."""

    @abstractmethod
    def blocks(self, point: Array) -> Blocks:
        """Return the blocks of U at a point."""

    @abstractmethod
    def state(self, point: Array, blocks: Blocks, scale: float) -> Array:
        """Return the coordinates of scale x U."""

    @abstractmethod
    def mass(self, blocks: Blocks) -> float:
        """Return the largest tr(U X) over all feasible X."""

    @abstractmethod
    def successor(self, state: Array, blocks: Blocks, gram: Blocks) -> Array:
        """Return the coordinates of the next U, given U and the blocks of its primal point X(U) (see `dual`)."""

    @abstractmethod
    def repair(self, blocks: Blocks, gram: Blocks) -> Blocks:
        """Return a block-diagonal W such that W X W is feasible, given the blocks of U and the blocks `gram` of X."""


@final
class OrthogonalMultipliers(Multipliers):
    """Multipliers for strategies whose columns are orthogonal within a residue class.

    The squared column norms of a class sum to 1. With `equal_norms`, they are all equal instead.

    Let # be the geometric mean of two positive definite matrices. Then X_r = U_r^-1 # V_r with V_r = X_r U_r X_r. If
    V_r did not depend on U_r, the best U_r would be D^-1 V_r D^-1. Here D is the optimal X_r. D is a diagonal matrix,
    and its entries are proportional to the square roots of the diagonal of V_r, or all equal. The fixed-point map uses
    D^-1 V_r D^-1 as the next U_r. Its fixed points have X_r = D. For classes of one step, this map multiplies U_r by
    X_r^2, whereas the map of Choquette-Choo et al. 2023 (multi-epoch), Cor. 3.1, multiplies it by X_r.

    Args:
        classes: the residue classes.
        equal_norms: True if all columns must have the same norm.
        floor: fraction by which U is mixed with its diagonal. Mixing lowers the bound by at most this fraction.
    """

    def __init__(self, classes: ResidueClasses, equal_norms: bool, floor: float) -> None:
        super().__init__(classes)
        self._equal, self._floor = equal_norms, floor

    def start(self) -> Array:
        """Return the coordinates of U = I, which are log I = 0."""
        return np.zeros(sum(block.size for block in self.classes.identity()))

    def blocks(self, point: Array) -> Blocks:
        """Return the matrix exponential of the coordinates, scaled to constant diagonals."""
        return self._normalised(spectral_function(np.exp, unflatten(point, self.classes.identity())))

    def state(self, point: Array, blocks: Blocks, scale: float) -> Array:
        """Return the matrix logarithm of scale x U."""
        return flatten(spectral_function(lambda values: np.log(values * scale), blocks))

    def mass(self, blocks: Blocks) -> float:
        """Return the sum over all classes of the constant diagonal entry of U_r; for equal norms, tr(U) / class size.

        If the diagonal of U_r is not constant because of rounding, its largest entry is used.
        """
        if self._equal:
            return sum(float(d.sum()) for d in diagonals(blocks)) / self.classes.largest
        return sum(float(d.max(axis=1).sum()) for d in diagonals(blocks))

    def successor(self, state: Array, blocks: Blocks, gram: Blocks) -> Array:
        """Return the logarithm of D^-1 V_r D^-1, mixed with its diagonal."""
        local = product(gram, blocks, gram)
        following = self._normalised(scaled(local, [1.0 / d for d in self._targets(local)]))
        return flatten(spectral_function(np.log, [self._mixed(block) for block in following]))

    def repair(self, blocks: Blocks, gram: Blocks) -> Blocks:
        """Return W = D # X_r^-1 for every class, the positive definite solution of W X_r W = D."""
        roots = [np.sqrt(d) for d in self._targets(product(gram, blocks, gram))]
        return scaled(spectral_function(lambda values: values**-0.5, scaled(gram, roots)), roots)

    def _mixed(self, block: Array) -> Array:
        return np.where(np.eye(block.shape[1], dtype=bool), block, (1.0 - self._floor) * block)

    def columns(self, squares: Array) -> Array:
        """Return feasible squared column norms, sorted by class, in the proportions of `squares`."""
        like = [np.empty(group.shape) for group in self.classes.groups]
        if self._equal:
            return np.full_like(squares, 1.0 / self.classes.largest)
        return np.concatenate([(d / d.sum(axis=1, keepdims=True)).ravel() for d in unflatten(squares, like)])

    def _targets(self, local: Blocks) -> list[Array]:
        """Return the diagonal of D: proportional to the square roots of the diagonal of V_r, or all equal."""
        if self._equal:
            return [np.full(block.shape[:2], 1.0 / self.classes.largest) for block in local]
        roots = [np.sqrt(d) for d in diagonals(local)]
        return [root / root.sum(axis=1, keepdims=True) for root in roots]

    def _normalised(self, blocks: Blocks) -> Blocks:
        blocks = [(block + block.swapaxes(1, 2)) / 2.0 for block in blocks]
        if self._equal:
            return blocks
        logs = [np.log(d) / 2.0 for d in diagonals(blocks)]
        return scaled(blocks, [np.exp(x.mean(axis=1, keepdims=True) - x) for x in logs])


@final
class SignMultipliers(Multipliers):
    """Multipliers for scalar contributions, which are 1 or -1 in the worst case.

    For each residue class, U_r = sum_s v_s s s^T over all sign vectors s, with one number v_s >= 0 for each s.

    Args:
        classes: the residue classes, with few steps each.
    """

    def __init__(self, classes: ResidueClasses) -> None:
        super().__init__(classes)
        sizes = [group.shape[1] for group in classes.groups]
        self._signs = [np.array([(1.0, *rest) for rest in combinations((1.0, -1.0), repeat=k - 1)]) for k in sizes]

    def start(self) -> Array:
        """Return the coordinates of equal v_s, for which U = I."""
        pairs = zip(self.classes.groups, self._signs, strict=True)
        return np.concatenate([np.full(len(group) * len(signs), -np.log(len(signs))) for group, signs in pairs])

    def blocks(self, point: Array) -> Blocks:
        """Return the sum of v_s s s^T over all sign vectors s."""
        parts = self._split(point)
        return [np.einsum("bs,si,sj->bij", v, s, s, optimize=True) for v, s in zip(parts, self._signs, strict=True)]

    def state(self, point: Array, blocks: Blocks, scale: float) -> Array:
        """Return the logarithms of scale x v_s."""
        return point + np.log(scale)

    def mass(self, blocks: Blocks) -> float:
        """Return the sum of all v_s. Every diagonal entry of a block U_r is the sum of the v_s of this class."""
        return sum(float(d.max(axis=1).sum()) for d in diagonals(blocks))

    def successor(self, state: Array, blocks: Blocks, gram: Blocks) -> Array:
        """Return the logarithms of v_s (s^T X_r s)^2, similar to Choquette-Choo et al. 2023 (multi-epoch), Cor. 3.1.

        Most v_s tend to 0. Their logarithms, minus the largest one, are kept at or above MIN_LOG_MULTIPLIER.
        """
        following = state + 2.0 * np.log(np.concatenate([form.ravel() for form in self._forms(gram)]))
        return np.maximum(following, following.max() + MIN_LOG_MULTIPLIER)

    def repair(self, blocks: Blocks, gram: Blocks) -> Blocks:
        """Return the multiple of the identity for each class that scales the class to sensitivity 1."""
        out = []
        for forms, group in zip(self._forms(gram), self.classes.groups, strict=True):
            out.append(forms.max(axis=1)[:, None, None] ** -0.5 * np.eye(group.shape[1]))
        return out

    def _split(self, point: Array) -> list[Array]:
        shapes = [(len(g), len(s)) for g, s in zip(self.classes.groups, self._signs, strict=True)]
        stops = np.cumsum([b * s for b, s in shapes])
        return [np.exp(point[stop - b * s : stop]).reshape(b, s) for (b, s), stop in zip(shapes, stops, strict=True)]

    def _forms(self, gram: Blocks) -> list[Array]:
        pairs = zip(gram, self._signs, strict=True)
        return [np.einsum("bij,si,sj->bs", block, s, s, optimize=True) for block, s in pairs]


@final
class RowWeights:
    """Weights of the steps in the error.

    For "rms", the weights are equal. For "max", they are the multipliers of the constraints that no variance exceeds
    the squared error. For any weights that sum to 1, the weighted mean of the variances is at most the largest
    variance, so every choice of weights gives a lower bound. The fixed-point map multiplies the weight of each step by
    the noise variance of this step.

    Args:
        steps: number of steps, n.
        objective: the error to minimise, "rms" or "max" over the steps.
        floor: fraction by which the weights are mixed with equal weights.
    """

    def __init__(self, steps: int, objective: Objective, floor: float) -> None:
        self._steps, self._floor = steps, floor
        self.fixed = objective == "rms"

    def start(self) -> Array:
        """Return the coordinates of equal weights."""
        return np.zeros(0 if self.fixed else self._steps)

    def weights(self, point: Array) -> Array:
        """Return positive weights that sum to 1."""
        if self.fixed:
            return np.full(self._steps, 1.0 / self._steps)
        powers = np.exp(point - point.max())
        return powers / powers.sum()

    def state(self, weights: Array) -> Array:
        """Return the coordinates of the weights, their logarithms."""
        return np.log(weights) if not self.fixed else np.zeros(0)

    def successor(self, weights: Array, variances: Array) -> Array:
        """Return the logarithm of weight x variance, mixed with equal weights."""
        if self.fixed:
            return np.zeros(0)
        following = weights * variances
        return np.log((1.0 - self._floor) * following / following.sum() + self._floor / self._steps)

    def value(self, variances: Array) -> float:
        """Return the squared error: the mean variance for "rms", or the largest variance for "max"."""
        return float(variances.mean() if self.fixed else variances.max())
