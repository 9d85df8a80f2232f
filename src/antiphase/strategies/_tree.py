"""The binary tree mechanism, which adds noise to sums over dyadic intervals of steps."""

from __future__ import annotations

from typing import Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from antiphase import _check
from antiphase._check import Array
from antiphase._record import record
from antiphase.strategies._base import Strategy, check_rows, check_steps
from antiphase.strategies._gram import TreeGram
from antiphase.strategies._recursion import TreeNodes, WholeMatrix, own_weight
from antiphase.strategies._stream import Stream

Decoder = Literal["online", "full"]


@final
@record
class Tree(Strategy):
    """The binary tree mechanism. Each row of the strategy C belongs to a tree node and sums the steps below the node.

    The tree is a complete binary tree with 2^h >= steps leaves. Nodes whose steps all lie beyond the end of the run are
    left out. A node with at least one step inside the run keeps its row. A step completes a node if it is the last step
    of the run below the node. Rows are in the order in which steps complete their nodes, with a leaf before the nodes
    above it.

    The online decoder computes the noise in the sum of each completed node, called the estimate of the node. It
    combines the node's own row of z with the estimates of its two children, left and right. The estimate of a node of
    level l is w_l z + (1 - w_l) (left + right), with the inverse-variance weight w_l = 2^l / (2^(l+1) - 1). For the
    prefix sum of t steps, the decoder adds the estimates of one node for each bit that is set in t. This takes
    floor(log2 steps) buffers. The last prefix sum is the estimate of the root, in which steps beyond the end of the run
    are zero and have no noise. The weights w_l assume a complete tree. With these weights, every printed digit of
    Choquette-Choo et al. 2023 (multi-epoch), Table 1, is reproduced. Weights that account for the missing noise of
    steps beyond the end would slightly reduce the error of the last prefix sum, and the totals in Table 1 by at most
    2 %.

    The full decoder is the pseudo-inverse of C. It has the smallest error of all decoders for every workload, but each
    of its outputs uses all of z.

    Args:
        steps: number of steps, n; need not be a power of two.
        decoder: "online" or "full".

    Reference: Honaker 2015; Kairouz et al. 2021; Choquette-Choo et al. 2023 (multi-epoch), App. D.3;
    full decoder: Denisov et al. 2022, App. C.

    >>> Tree(3).encoder().tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]
    """

    steps: int
    decoder: Decoder = "online"

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check_steps("Tree", self.steps))
        if not isinstance(self.decoder, str) or self.decoder not in get_args(Decoder):
            raise _check.invalid(
                "Tree", "decoder", "'online' or 'full'", self.decoder, "use 'online', which needs the least memory"
            )

    @property
    def height(self) -> int:
        """Level of the root; leaves have level 0."""
        return TreeNodes(self.steps).height

    @property
    def rows(self) -> int:
        """Number of nodes."""
        return TreeNodes(self.steps).rows

    def rows_at(self, step: int) -> int:
        """Return the number of rows of z that the noising stream takes in this step.

        For the online decoder, it is the number of nodes that the step completes. The full decoder takes all rows in
        the first step.
        """
        completed = self.completed_level(step) + 1
        return completed if self.decoder == "online" else self.rows * (step == 0)

    def completed_level(self, step: int) -> int:
        """Return the level of the highest node that this step completes."""
        return TreeNodes(self.steps).completed_level(step)

    def multiply(self, x: ArrayLike) -> Array:
        """Return C x along the first axis, computed level by level."""
        sums = check_rows(self, "multiply", x, self.steps)
        out = np.empty((self.rows, *sums.shape[1:]))
        for level in range(self.height + 1):
            out[_row_numbers(self.steps, level)] = sums
            sums = _add_pairs(sums)
        return out

    def solve(self, z: ArrayLike) -> Array:
        """Return N z along the first axis, computed level by level."""
        z = check_rows(self, "solve", z, self.rows)
        decode = _online if self.decoder == "online" else _full
        return decode(self, z.reshape(self.rows, -1)).reshape(self.steps, *z.shape[1:])

    @property
    def is_extensible(self) -> bool:
        """True if the decoder is online. A run can then be extended at any step before its last."""
        return self.decoder == "online"

    @property
    def first_is_monotone(self) -> bool:
        """Always true: no entry is negative."""
        return True

    def first(self, steps: int) -> Tree:
        """Return a tree over the first `steps` steps for the online decoder, or all of C for the full decoder.

        The smaller tree has every node that these steps complete, and also the incomplete nodes above its last step.
        """
        return Tree(steps) if self.decoder == "online" else self

    @property
    def tree_height(self) -> int:
        """Level of the root, `height`."""
        return self.height

    def gram(self, *, absolute: bool = False) -> TreeGram:
        """Return the Gram matrix. X[i, j] is the number of nodes above both steps i and j."""
        return TreeGram(self.steps)

    def encoding_stream(self) -> Stream:
        """Return a stream that keeps the sums of completed nodes whose parents are not completed."""
        return _TreeEncoding(self)

    def recursion(self) -> TreeNodes | WholeMatrix:
        """Return `TreeNodes` for the online decoder, or `WholeMatrix` for the full decoder."""
        return TreeNodes(self.steps) if self.decoder == "online" else WholeMatrix(self, is_ordinary=True)


def _last_steps(steps: int, level: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the step that completes each node of a level."""
    nodes = np.arange(-(-steps >> level), dtype=np.int64)
    return np.minimum((nodes + 1) << level, steps) - 1


def _row_numbers(steps: int, level: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the row of C for each node of a level.

    Before step t, 2t - popcount(t) nodes are completed.
    """
    last = _last_steps(steps, level)
    return 2 * last - np.bitwise_count(last) + level


def _add_pairs(values: Array) -> Array:
    """Return the sum of each pair of siblings in a level; a node beyond the end of the run counts as zero."""
    out = values[0::2].copy()
    out[: len(values) // 2] += values[1::2]
    return out


def _online(tree: Tree, z: Array) -> Array:
    """Return the noise N z for the online decoder: the differences between the estimates of consecutive prefix sums.

    The noise of a step is the estimate of the highest node that the step completes, minus the estimates of some nodes
    below it: the left siblings of the nodes on the path from the step's leaf to that highest node. The previous prefix
    sum contains these siblings, and the next one contains the highest node instead.
    """
    n = tree.steps
    out = np.zeros((n, z.shape[1]))
    estimate = np.zeros((1, z.shape[1]))  # leaves have no children
    for level in range(tree.height + 1):
        weight, last = own_weight(level), _last_steps(n, level)
        estimate = weight * z[_row_numbers(n, level)] + (1.0 - weight) * _add_pairs(estimate)
        out[last[1::2]] -= estimate[0::2][: len(last) // 2]
        is_highest = last[0::2] < n - 1
        out[last[0::2][is_highest]] += estimate[0::2][is_highest]
    out[n - 1] += estimate[0]
    return out


def _full(tree: Tree, z: Array) -> Array:
    """Return (C^T C)^-1 C^T z, the least-squares solution.

    Computes estimates from the leaves up, then distributes residuals from the root down in proportion to variances.
    """
    n = tree.steps
    variances, estimates = [np.ones((n, 1))], [z[_row_numbers(n, 0)]]
    for level in range(1, tree.height + 1):
        below = _add_pairs(variances[-1])
        weight = below / (1.0 + below)
        estimates.append(weight * z[_row_numbers(n, level)] + (1.0 - weight) * _add_pairs(estimates[-1]))
        variances.append(weight)
    final = estimates.pop()
    for variance, estimate in zip(variances[-2::-1], reversed(estimates), strict=True):
        residual = (final - _add_pairs(estimate)) / _add_pairs(variance)
        final = estimate + variance * np.repeat(residual, 2, axis=0)[: len(estimate)]
    return final


class _TreeEncoding(Stream):
    def __init__(self, tree: Tree) -> None:
        self._tree, self._step = tree, 0
        self._nodes: list[Array] = []

    def step(self, value: Array) -> Array:
        node, rows = value, [value]
        for level in range(self._tree.completed_level(self._step)):
            if self._step >> level & 1:  # a right child; otherwise a left child without a sibling in the run
                node = self._nodes.pop() + node
            rows.append(node)
        self._nodes.append(node)
        self._step += 1
        return np.stack(rows)
