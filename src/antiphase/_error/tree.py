"""Error of the binary tree, without forming a matrix."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._workload import Workload
from antiphase.strategies import Tree


def online_tree_variances(strategy: Tree, workload: Workload) -> Array:
    """Return the variance of each step of A N z for sigma = 1, where N is the online decoder.

    The nodes that wait for their parents and the outputs that the workload remembers form one Gaussian state. Updating
    its covariance from step to step takes O(n log n) in total.

    >>> from antiphase import PrefixSum
    >>> online_tree_variances(Tree(4), PrefixSum()).round(6).tolist()
    [1.0, 0.666667, 1.666667, 0.571429]
    """
    from antiphase._kernels import online_moments

    return online_moments(workload.inverse_bands(strategy.steps))[0]


def full_tree_variances(strategy: Tree, workload: Workload) -> Array:
    """Return the variance of each step of A N z for sigma = 1, where N is the full decoder: diag(A X^-1 A^T).

    X is inverted from the leaves up, with one rank-one correction per node. A finished node affects later steps only
    through the few outputs that the workload remembers, so this takes O(n log n).

    >>> from antiphase import PrefixSum
    >>> full_tree_variances(Tree(4, decoder="full"), PrefixSum()).round(6).tolist()
    [0.619048, 0.47619, 0.904762, 0.571429]
    """
    from antiphase._kernels import full_moments

    return full_moments(workload.inverse_bands(strategy.steps))[0]


def stamped_tree_variances(tree: Tree, repeats: int, workload: Workload) -> Array:
    """Return the variances of a tree that restarts every tree.steps steps, under any workload.

    The noise of the blocks is independent, and earlier blocks affect a block only through the outputs that the workload
    remembers. Their covariance is carried from block to block, which takes O(n log n) in total.

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
        # Responses to the remembered outputs, latest first, computed as if these were d extra steps before the block.
        carried = np.vstack([np.eye(d)[::-1], np.zeros((tree.steps, d))])
        filter_columns(carried, np.vstack([np.tile(np.eye(1, d + 1), (d, 1)), block]))
        out.append(variances + np.einsum("ti,ij,tj->t", carried[d:], before, carried[d:]))
        last = carried[::-1][:d]
        before = own + last @ before @ last.T
    return np.concatenate(out)
