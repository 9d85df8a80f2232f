"""The dense problem for `Curvatures`: minimise tr(V X^-1) with V = sum_i p_i A_i^T diag(g^2) A_i.

Here X = C^T C for the strategy C, p_i is the weight of curvature i, and A_i is the workload in the directions with this
curvature. The vector g is as in the docstring of `Curvatures`: g_t^2 = 1 / n if all n steps count. If only the last
iterate counts, g_t^2 is 1 for the last step and 0 for the others. If the model is the mean of the last iterates,
V = sum_i a_i a_i^T with the vectors a_i from `Curvatures.last_rows`.

Unless all steps count, V is singular: its rank is at most the number of curvatures. The best X is then singular too,
and the iteration that maximises the dual function (see `dual_ascent`) has no fixed point. So the iteration uses
V + share x V_all + c I instead of V, with a small number `share`. V_all is the matrix V for the case that all steps
count. Adding it keeps the noise of earlier iterates from growing too large. The multiple of the identity bounds the
condition number.

Loss and bound are computed for V itself. This is possible because the bound of `dual` holds for any positive
semidefinite V, at any multiplier U. If loss and bound do not agree to the tolerance, the iteration continues with a
smaller share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from antiphase._check import Array
from antiphase._error import trajectory_weight
from antiphase._errors import NotProved
from antiphase._objective import Curvatures
from antiphase._optimize.dense.dual import EPS, BlockDual, SortedWorkload
from antiphase._optimize.dense.dual_ascent import ascend
from antiphase._optimize.dense.multipliers import OrthogonalMultipliers, RowWeights
from antiphase._optimize.dense.residue_blocks import ResidueClasses
from antiphase._optimize.solution import SearchLimits
from antiphase._workload import Workload

SHARES = (1e-4, 1e-5, 1e-6)  # values of `share`, the weight of V_all, tried in turn
GRADIENT_NOISE = 0.02  # determines c: the trace of (c I)^1/2 is this fraction of the trace of V^1/2


@dataclass(frozen=True)
class CurvaturesResult:
    """The result of `solve_curvatures`.

    Args:
        gram: X = C^T C of the best strategy.
        bound: the largest proved lower bound on the squared loss.
        converged: True if loss and bound agree to the tolerance.
    """

    gram: Array
    bound: float
    converged: bool


def solve_curvatures(
    classes: ResidueClasses,
    workload: Workload,
    objective: Curvatures,
    limits: SearchLimits,
    equal_norms: bool,
    tolerance: float,
    square: Callable[[Array], float],
) -> CurvaturesResult:
    """Return the best X, and a lower bound on the squared loss of every X that satisfies the constraints.

    Args:
        classes: the residue classes of the steps.
        workload: the workload matrix for curvature 0.
        objective: the curvatures, and the steps whose error counts.
        limits: when to stop early.
        equal_norms: True if all columns of C must have the same norm.
        tolerance: stop when loss / (root of the bound) - 1 is at most this.
        square: function that returns the squared loss of X.
    """
    n, factor = classes.steps, gram_factor(workload, objective, classes.steps)
    counts_all = objective.counted_steps(n) == n or objective.way is not None
    whole = objective if counts_all else Curvatures(objective.values, objective.weights, "all")
    every_step = gram(workload, whole, n)
    gradients = (GRADIENT_NOISE * float(np.linalg.svd(factor, compute_uv=False).sum()) / n) ** 2 * np.eye(n)
    best: Array | None = None
    least, bound, start = math.inf, 0.0, None
    for share in (0.0,) if counts_all else SHARES:
        V = every_step if counts_all else factor @ factor.T + share * every_step + gradients
        dual = _dual(V, classes, equal_norms, tolerance)
        found = ascend(dual, dual.start() if start is None else start, limits, 0.5 * tolerance)
        start, X = found.state, found.gram()
        value, bound = square(X), max(bound, dual.lower_bound(found.state, factor))
        if value < least:
            least, best = value, X
        converged = math.sqrt(least) <= (1.0 + tolerance) * math.sqrt(bound)
        if converged or limits.reached:
            break
    assert best is not None
    return CurvaturesResult(best, bound, converged)


def _dual(V: Array, classes: ResidueClasses, equal_norms: bool, tolerance: float) -> BlockDual:
    """Return the dual function for tr(V X^-1).

    Let V = L L^T be the Cholesky factorization. Then tr(V X^-1) is the mean of the n squared row norms of
    sqrt(n) L^T X^-1/2. So the dual function for "rms" is used, with sqrt(n) L^T as the workload matrix.
    """
    n = classes.steps
    try:
        root = np.asarray(math.sqrt(n) * np.linalg.cholesky(V).T, dtype=np.float64)
    except np.linalg.LinAlgError:
        raise NotProved(
            "The Gram matrix of this workload is too close to singular.",
            hint="use equal learning rates, or fewer steps",
        ) from None
    floor = 0.1 * tolerance
    kind = OrthogonalMultipliers(classes, equal_norms, floor)
    return BlockDual(SortedWorkload(root, None, classes), kind, RowWeights(n, "rms", floor), 0.3 * tolerance)


def gram(workload: Workload, objective: Curvatures, steps: int) -> Array:
    """Return the matrix V defined at the top of this module.

    If all steps count, V is computed by one O(n^2) recursion for each curvature. Otherwise it is computed from the last
    rows of the workloads. With a trajectory term (see `Curvatures`), V is a weighted sum of both.
    """
    from antiphase._kernels import workload_gram

    if objective.way is not None:
        weight = trajectory_weight(workload, objective, steps)
        return gram(workload, objective.destination, steps) + weight * gram(workload, objective.way, steps)
    if objective.counted_steps(steps) == 1:
        rows = objective.last_rows(workload, steps)
        return rows @ rows.T
    weights = np.full(steps, 1.0 / steps)
    V = np.zeros((steps, steps))
    for share, A in zip(objective.shares, objective.workloads(workload), strict=True):
        V += share * workload_gram(A.inverse_bands(steps), weights)
    return V


def gram_factor(workload: Workload, objective: Curvatures, steps: int) -> Array:
    """Return F such that F F^T is the V of `gram`, or is smaller than V by an allowance for rounding errors.

    If only the last iterate counts, the columns of F are the weighted last rows of the workloads. Otherwise F is
    computed from the eigenvalues of V, each reduced by the allowance. The allowance grows with n, because every entry
    of V is a sum of up to n rounded products for each curvature.
    """
    if objective.counted_steps(steps) == 1 and objective.way is None:
        return objective.last_rows(workload, steps)
    V = gram(workload, objective, steps)
    values, vectors = np.linalg.eigh(V)
    rounding = 16 * steps * EPS * float(np.linalg.norm(V))
    return vectors * np.sqrt(np.maximum(values - rounding, 0.0))
