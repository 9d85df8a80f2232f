"""Error of a stamped strategy: the blocks' noise is independent and adds up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import Stamped, Strategy, Tree

Variances = Callable[[Strategy, Workload], Array]


def stamped_variances(strategy: Stamped, workload: Workload, variances: Variances) -> Array:
    """Variances of A (I (x) N) z, with `variances` giving those of the base strategy.

    A prefix sum keeps the whole noise of every finished block, the variance of its last step; other workloads
    run each block's noise on to the end.
    """
    if isinstance(workload, PrefixSum):
        base = variances(strategy.strategy, workload)
        return (base + base[-1] * np.arange(strategy.repeats)[:, None]).ravel()
    if isinstance(strategy.strategy, Tree):
        from antiphase._error.tree import stamped_tree_variances

        return stamped_tree_variances(strategy.strategy, strategy.repeats, workload)
    return _run_on(strategy, workload)


def _run_on(strategy: Stamped, workload: Workload) -> Array:
    from antiphase._kernels import filter_columns

    n, block = strategy.steps, strategy.strategy.steps
    inverse = workload.inverse_bands(n)
    noising = strategy.strategy.noising()
    out = np.zeros(n)
    for start in range(0, n, block):
        x = np.zeros((n - start, noising.shape[1]))
        x[:block] = noising
        filter_columns(x, inverse[start:])
        out[start:] += np.einsum("ij,ij->i", x, x)
    return out
