"""Multipliers of the constraints of the dense problem: which U they give, and the map that has the optimum as fixed
point.

A contribution of one example in the class r of steps has, over all directions, second moments K, a correlation
matrix, and tr(X_r K) <= 1 is the constraint. So U_r = v_r K with v_r >= 0, any positive semidefinite matrix of
constant diagonal: the multipliers of the constraint "X_r is diagonal with trace 1" are the same matrices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product as combinations
from typing import final

import numpy as np

from antiphase._check import Array
from antiphase._loss import Objective
from antiphase._optimize._classes import Blocks, Classes, diagonals, flat, product, scaled, spectral, unflat

SMALLEST = -25.0  # log of a multiplier that counts as 0, relative to the largest


class Multipliers(ABC):
    """A set of multipliers U, block diagonal over the classes, with coordinates that no step can leave."""

    def __init__(self, classes: Classes) -> None:
        self.classes = classes

    @abstractmethod
    def start(self) -> Array:
        """Coordinates of U = I."""

    @abstractmethod
    def blocks(self, point: Array) -> Blocks:
        """U."""

    @abstractmethod
    def state(self, point: Array, blocks: Blocks, scale: float) -> Array:
        """Coordinates of U x scale."""

    @abstractmethod
    def mass(self, blocks: Blocks) -> float:
        """The largest tr(U X) for a feasible X."""

    @abstractmethod
    def successor(self, state: Array, blocks: Blocks, gram: Blocks) -> Array:
        """Coordinates of the next U, from U and the blocks of X(U)."""

    @abstractmethod
    def repair(self, blocks: Blocks, gram: Blocks) -> Blocks:
        """W such that W X W is feasible."""


@final
class OrthogonalMultipliers(Multipliers):
    """For columns of one class that are orthogonal, with squares that sum to 1, or are equal.

    If X depended on U class by class, X_r = U_r^-1 # V_r (geometric mean) with V_r = X_r U_r X_r, the best U_r would
    be D^-1 V_r D^-1 with D = X_r the optimum: D_i ~ sqrt(V_ii), or all equal. Taking that for the next U is the
    fixed-point map; its fixed points have X_r = D. For classes of one step it is the fixed point of Cor. 3.1, squared.

    Args:
        classes: the residue classes.
        equal_norms: all columns have the same norm.
        floor: U is mixed with this share of its diagonal, which costs the bound no more than that share.
    """

    def __init__(self, classes: Classes, equal_norms: bool, floor: float) -> None:
        super().__init__(classes)
        self._equal, self._floor = equal_norms, floor

    def start(self) -> Array:
        """log I."""
        return np.zeros(sum(block.size for block in self.classes.identity()))

    def blocks(self, point: Array) -> Blocks:
        """The matrix exponential of the coordinates, with constant diagonals."""
        return self._normalised(spectral(np.exp, unflat(point, self.classes.identity())))

    def state(self, point: Array, blocks: Blocks, scale: float) -> Array:
        """The matrix logarithm."""
        return flat(spectral(lambda values: np.log(values * scale), blocks))

    def mass(self, blocks: Blocks) -> float:
        """The diagonal of each class once; all of it over the number of participations for equal norms."""
        if self._equal:
            return sum(float(d.sum()) for d in diagonals(blocks)) / self.classes.largest
        return sum(float(d.max(axis=1).sum()) for d in diagonals(blocks))

    def successor(self, state: Array, blocks: Blocks, gram: Blocks) -> Array:
        """log of D^-1 V_r D^-1, mixed with its diagonal."""
        local = product(gram, blocks, gram)
        following = self._normalised(scaled(local, [1.0 / d for d in self._targets(local)]))
        return flat(spectral(np.log, [self._mixed(block) for block in following]))

    def repair(self, blocks: Blocks, gram: Blocks) -> Blocks:
        """W = D # X_r^-1, the positive definite solution of W X_r W = D."""
        roots = [np.sqrt(d) for d in self._targets(product(gram, blocks, gram))]
        return scaled(spectral(lambda values: values**-0.5, scaled(gram, roots)), roots)

    def _mixed(self, block: Array) -> Array:
        return np.where(np.eye(block.shape[1], dtype=bool), block, (1.0 - self._floor) * block)

    def columns(self, squares: Array) -> Array:
        """Squared column norms in these proportions, sorted by class, that are feasible."""
        like = [np.empty(group.shape) for group in self.classes.groups]
        if self._equal:
            return np.full_like(squares, 1.0 / self.classes.largest)
        return np.concatenate([(d / d.sum(axis=1, keepdims=True)).ravel() for d in unflat(squares, like)])

    def _targets(self, local: Blocks) -> list[Array]:
        """D: proportional to the roots of the diagonal of V_r and of trace 1, or equal."""
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
    """For scalar contributions: one multiplier for each class and each choice of signs, U = sum v_s s s^T.

    Args:
        classes: the residue classes, of few steps each.
    """

    def __init__(self, classes: Classes) -> None:
        super().__init__(classes)
        sizes = [group.shape[1] for group in classes.groups]
        self._signs = [np.array([(1.0, *rest) for rest in combinations((1.0, -1.0), repeat=k - 1)]) for k in sizes]

    def start(self) -> Array:
        """Equal multipliers give U = I."""
        pairs = zip(self.classes.groups, self._signs, strict=True)
        return np.concatenate([np.full(len(group) * len(signs), -np.log(len(signs))) for group, signs in pairs])

    def blocks(self, point: Array) -> Blocks:
        """The sum over the signs."""
        parts = self._split(point)
        return [np.einsum("bs,si,sj->bij", v, s, s, optimize=True) for v, s in zip(parts, self._signs, strict=True)]

    def state(self, point: Array, blocks: Blocks, scale: float) -> Array:
        """The logarithm of the multipliers."""
        return point + np.log(scale)

    def mass(self, blocks: Blocks) -> float:
        """The sum of the multipliers of each class, which is every entry of the diagonal."""
        return sum(float(d.max(axis=1).sum()) for d in diagonals(blocks))

    def successor(self, state: Array, blocks: Blocks, gram: Blocks) -> Array:
        """v_s (s^T X s)^2, the fixed point of Cor. 3.1; most of them tend to 0 and stop at SMALLEST."""
        following = state + 2.0 * np.log(np.concatenate([form.ravel() for form in self._forms(gram)]))
        return np.maximum(following, following.max() + SMALLEST)

    def repair(self, blocks: Blocks, gram: Blocks) -> Blocks:
        """Scale each class to sensitivity 1."""
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
    """Weights of the steps in the error: equal for rms; for max, multipliers of "no variance is larger than this".

    For any weights of sum 1 the weighted mean of the variances is at most the largest, so every choice gives a lower
    bound; the fixed-point map multiplies each weight by its variance.
    """

    def __init__(self, steps: int, objective: Objective, floor: float) -> None:
        self._steps, self._floor = steps, floor
        self.fixed = objective == "rms"

    def start(self) -> Array:
        """Equal weights."""
        return np.zeros(0 if self.fixed else self._steps)

    def weights(self, point: Array) -> Array:
        """Positive, of sum 1."""
        if self.fixed:
            return np.full(self._steps, 1.0 / self._steps)
        powers = np.exp(point - point.max())
        return powers / powers.sum()

    def state(self, weights: Array) -> Array:
        """The logarithm."""
        return np.log(weights) if not self.fixed else np.zeros(0)

    def successor(self, weights: Array, variances: Array) -> Array:
        """log of weight x variance, mixed with a share of equal weights."""
        if self.fixed:
            return np.zeros(0)
        following = weights * variances
        return np.log((1.0 - self._floor) * following / following.sum() + self._floor / self._steps)

    def value(self, variances: Array) -> float:
        """The objective, squared."""
        return float(variances.mean() if self.fixed else variances.max())
