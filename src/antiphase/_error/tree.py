"""Error of the binary tree, without forming a matrix."""

from __future__ import annotations

import numpy as np

from antiphase._check import Array
from antiphase._workload import Workload
from antiphase.strategies import Tree


def online_tree_variances(strategy: Tree, workload: Workload) -> Array:
    """The variance of each step of A N z for sigma = 1, N the online decoder.

    The nodes that wait for their parents and the outputs that the workload remembers form one Gaussian state; its
    covariance is carried from step to step, O(n log n).

    >>> from antiphase import PrefixSum
    >>> online_tree_variances(Tree(4), PrefixSum()).round(6).tolist()
    [1.0, 0.666667, 1.666667, 0.571429]
    """
    from antiphase._kernels import online_moments

    return online_moments(workload.inverse_bands(strategy.steps))[0]


def full_tree_variances(strategy: Tree, workload: Workload) -> Array:
    """The variance of each step of A N z for sigma = 1, N the full decoder: the diagonal of A X^-1 A^T.

    X is inverted up the tree, one rank-one correction per node, and a workload sees a finished node only through
    the few outputs it remembers, O(n log n).

    >>> from antiphase import PrefixSum
    >>> full_tree_variances(Tree(4, decoder="full"), PrefixSum()).round(6).tolist()
    [0.619048, 0.47619, 0.904762, 0.571429]
    """
    from antiphase._kernels import full_moments

    return full_moments(workload.inverse_bands(strategy.steps))[0]


def stamped_tree_variances(tree: Tree, repeats: int, workload: Workload) -> Array:
    """Return the variances of a tree that restarts every tree.steps steps, under any workload.

    The blocks' noise is independent, and a workload sees the blocks before only through the outputs it remembers:
    their covariance is carried over, O(n log n).

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
        # The response to each remembered output, the latest first, as if those were d steps of their own.
        carried = np.vstack([np.eye(d)[::-1], np.zeros((tree.steps, d))])
        filter_columns(carried, np.vstack([np.tile(np.eye(1, d + 1), (d, 1)), block]))
        out.append(variances + np.einsum("ti,ij,tj->t", carried[d:], before, carried[d:]))
        last = carried[::-1][:d]
        before = own + last @ before @ last.T
    return np.concatenate(out)
