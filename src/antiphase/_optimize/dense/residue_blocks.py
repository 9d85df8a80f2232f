"""Residue classes of the steps, and matrices that are block diagonal over them.

Under fixed epochs of b steps, an example takes part in the steps of one residue class modulo b. If the steps are sorted
by residue class, the matrix of Lagrange multipliers of the sensitivity constraint is block diagonal, with one block for
each class. The type `Blocks` represents such matrices. Blocks of the same size are stacked in one array.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array

Blocks = list[Array]  # one array of shape (classes, size, size) for each class size; there are at most two sizes


class ResidueClasses:
    """The residue classes of 0, ..., steps - 1 modulo `period`. Classes with more steps come first."""

    def __init__(self, steps: int, period: int) -> None:
        members = [np.arange(r, steps, period) for r in range(min(period, steps))]
        sizes = sorted({len(m) for m in members}, reverse=True)
        self.groups = [np.array([m for m in members if len(m) == size]) for size in sizes]
        self.steps = steps
        self.largest = sizes[0]
        self.order = np.concatenate([group.ravel() for group in self.groups])
        stops = np.cumsum([group.size for group in self.groups])
        self._slices = [slice(stop - group.size, stop) for group, stop in zip(self.groups, stops, strict=True)]

    def identity(self) -> Blocks:
        """Return the identity matrix as blocks."""
        return [np.tile(np.eye(group.shape[1]), (len(group), 1, 1)) for group in self.groups]

    def times(self, blocks: Blocks, matrix: Array) -> Array:
        """Return the product of a block-diagonal matrix and a dense matrix whose rows are sorted by class."""
        out = np.empty_like(matrix)
        for block, rows in zip(blocks, self._slices, strict=True):
            out[rows] = (block @ matrix[rows].reshape(*block.shape[:2], -1)).reshape(-1, matrix.shape[1])
        return out

    def inner(self, factor: Array, weights: Array) -> Blocks:
        """Return the diagonal blocks of the product F diag(weights) F^T. Rows of F = `factor` are sorted by class."""
        out = []
        for group, rows in zip(self.groups, self._slices, strict=True):
            part = factor[rows].reshape(*group.shape, -1)
            out.append((part * weights) @ part.swapaxes(1, 2))
        return out

    def restricted(self, matrix: Array) -> Blocks:
        """Return the diagonal blocks of a dense matrix whose rows and columns are sorted by class."""
        out = []
        for group, rows in zip(self.groups, self._slices, strict=True):
            b, k = group.shape
            part = matrix[rows, rows].reshape(b, k, b, k)
            out.append(part[np.arange(b), :, np.arange(b), :])
        return out

    def embedded(self, blocks: Blocks) -> Array:
        """Return the blocks as a dense matrix whose rows and columns are sorted by class."""
        return self.times(blocks, np.eye(self.steps))

    def in_order(self, matrix: Array) -> Array:
        """Undo the sorting of rows and columns by class: return the matrix in the order of the steps."""
        out = np.empty_like(matrix)
        out[np.ix_(self.order, self.order)] = matrix
        return out


def spectral_function(function: Callable[[Array], Array], blocks: Blocks) -> Blocks:
    """Apply a scalar function to the eigenvalues of symmetric blocks."""
    out = []
    for block in blocks:
        values, vectors = np.linalg.eigh(block)
        out.append((vectors * function(values)[:, None, :]) @ vectors.swapaxes(1, 2))
    return out


def diagonals(blocks: Blocks) -> list[Array]:
    """Return the diagonals of the blocks, as views of shape (classes, size)."""
    return [np.einsum("bii->bi", block) for block in blocks]


def scaled(blocks: Blocks, scales: list[Array]) -> Blocks:
    """Return diag(s) block diag(s) for every block, where s is the row of `scales` for this block."""
    return [s[:, :, None] * block * s[:, None, :] for block, s in zip(blocks, scales, strict=True)]


def product(*factors: Blocks) -> Blocks:
    """Return the product of block-diagonal matrices."""
    out = factors[0]
    for factor in factors[1:]:
        out = [left @ right for left, right in zip(out, factor, strict=True)]
    return out


def flatten(blocks: Blocks) -> Array:
    """Return all entries as one vector."""
    return np.concatenate([block.ravel() for block in blocks])


def unflatten(vector: Array, like: Blocks) -> Blocks:
    """Return the inverse of `flatten`: the entries of `vector` as blocks with the shapes of `like`."""
    stops = np.cumsum([block.size for block in like])
    return [vector[stop - block.size : stop].reshape(block.shape) for block, stop in zip(like, stops, strict=True)]
