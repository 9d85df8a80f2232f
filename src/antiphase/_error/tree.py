"""The error of the binary tree, computed without forming a matrix.

A is the workload matrix, C the strategy matrix, N the noising matrix (a left inverse of C), and z white noise. `Tree`
calls N its decoder and has two of them. The online decoder computes the noise up to a step from the tree's nodes that
are completed by then. The full decoder is the pseudo-inverse of C.
"""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._workload import Workload
from antiphase.strategies import Tree


def online_tree_variances(strategy: Tree, workload: Workload) -> Array:
    """Return the variance of each row of A N z, where N is the online decoder and z has standard deviation 1.

    The computation updates a covariance matrix from step to step, which takes O(n log n) time in total. A node of the
    tree is completed by the last step below it. The matrix is the covariance of the noise of the completed nodes whose
    parents are not completed yet, and of the last few rows of A N z. Earlier rows do not affect the next row, because
    A^-1 is banded.

    >>> from antiphase import PrefixSum
    >>> online_tree_variances(Tree(4), PrefixSum()).round(6).tolist()
    [1.0, 0.666667, 1.666667, 0.571429]
    """
    from antiphase._kernels import online_moments

    return online_moments(workload.inverse_bands(strategy.steps))[0]


def full_tree_variances(strategy: Tree, workload: Workload) -> Array:
    """Return the variance of each row of A N z, where N is the full decoder and z has standard deviation 1.

    With X = C^T C, these variances are diag(A X^-1 A^T). X is inverted from the leaves up, with one rank-one correction
    per node. A^-1 is banded. Therefore, in the columns for the steps below a node, all rows of A for later steps are
    linear combinations of a few vectors. The computation thus takes O(n log n) time.

    >>> from antiphase import PrefixSum
    >>> full_tree_variances(Tree(4, decoder="full"), PrefixSum()).round(6).tolist()
    [0.619048, 0.47619, 0.904762, 0.571429]
    """
    from antiphase._kernels import full_moments

    return full_moments(workload.inverse_bands(strategy.steps))[0]


def stamped_tree_variances(tree: Tree, repeats: int, workload: Workload) -> Array:
    """Return the variance of each step for a tree that restarts every tree.steps steps, under any workload.

    The noise of the blocks (the steps between restarts) is independent. Earlier blocks affect a block only through the
    last few rows of A N z, because A^-1 is banded. The covariance of these rows is updated from block to block, which
    takes O(n log n) time in total.

    >>> from antiphase import PrefixSum
    >>> stamped_tree_variances(Tree(2), 2, PrefixSum()).round(6).tolist()
    [1.0, 0.666667, 1.666667, 1.333333]
    """
    from antiphase._kernels import filter_columns, full_moments, online_moments

    moments = online_moments if tree.decoder == "online" else full_moments
    bands = workload.inverse_bands(repeats * tree.steps)
    d = bands.shape[1] - 1
    before, out = np.zeros((d, d)), []
    for block in np.split(bands, repeats):
        variances, own = moments(block)
        # The last d rows of A N z before the block are prepended to the block as extra steps. Column i is the effect of
        # the i-th latest of these rows on the block.
        carried = np.vstack([np.eye(d)[::-1], np.zeros((tree.steps, d))])
        filter_columns(carried, np.vstack([np.tile(np.eye(1, d + 1), (d, 1)), block]))
        out.append(variances + np.einsum("ti,ij,tj->t", carried[d:], before, carried[d:]))
        last = carried[::-1][:d]
        before = own + last @ before @ last.T
    return np.concatenate(out)
