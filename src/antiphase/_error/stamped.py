"""Error of a stamped strategy: the noise of its blocks is independent, so variances add up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from antiphase._check import Array
from antiphase._workload import PrefixSum, Workload
from antiphase.strategies import Stamped, Strategy, Tree

Variances = Callable[[Strategy, Workload], Array]


def stamped_variances(strategy: Stamped, workload: Workload, variances: Variances) -> Array:
    """Return the variances of A (I (x) N) z, where `variances` computes those of the base strategy.

    In a prefix sum, a finished block keeps contributing the noise of its last step. Under other workloads, the noise of
    each block is propagated to the end of the run.
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
