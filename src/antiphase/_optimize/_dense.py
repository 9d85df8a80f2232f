"""The best strategy of all, with a certificate."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument, NotEnoughMemory
from antiphase._loss import Objective, loss
from antiphase._optimize._ascent import Ascent, ascend
from antiphase._optimize._classes import Classes
from antiphase._optimize._dual import BlockDual, ClassedWorkload
from antiphase._optimize._halved import halves, spread
from antiphase._optimize._multipliers import Multipliers, OrthogonalMultipliers, RowWeights, SignMultipliers
from antiphase._optimize._nonnegative import NonnegativeDual
from antiphase._optimize._scalar_only import ScalarOnly
from antiphase._optimize._schema import Schema, schema
from antiphase._optimize._separated import SeparatedProblem, descend_separated
from antiphase._optimize._solution import Limits, Solution
from antiphase._participation import MinSeparation, Participation
from antiphase._workload import Workload
from antiphase.strategies import Banded, Dense

Constraint = Literal["pattern", "nonnegative", "scalar"]

OWNER = "optimize('dense')"
LARGEST_STEPS = 8192
LARGEST_SIGNS = 1 << 20
TOLERANCES: dict[Objective, float] = {"rms": 1e-4, "max": 2e-3}
FLOOR = 0.1  # of the tolerance
NONNEGATIVE_FLOOR = 1e-2
ROUNDING = 0.3  # of the tolerance may go to rounding where that saves most of the time
HALF_TOLERANCE = 1e-3  # what a start from half the steps comes to anyway


def optimize_dense(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    *,
    constraint: Constraint = "pattern",
    equal_norms: bool = False,
    tolerance: float | None = None,
) -> Solution:
    """Minimise sensitivity x error over all matrices, and prove how close the result is.

    Single participation, every step and fixed epochs: minimise tr(A^T A X^-1) over X = C^T C whose columns are
    orthogonal within a residue class, by ascent on the dual. Those constraints cost nothing: the multipliers of the
    sensitivity to vectors are the same matrices, so the result is the optimum for vector contributions. Minimum
    separation: X has as many bands as the separation, by descent on C.

    **Guarantee**: `lower_bound` is the dual function at a feasible point, rounding allowed for. Under fixed epochs with
    constraint="pattern" no matrix C at all has a smaller loss, with "nonnegative" none with X >= 0, with "scalar" none
    even against scalar contributions; with equal_norms, none whose columns have equal norms and are orthogonal within
    a class. Under minimum separation no C with that many bands has a smaller loss. `converged` says whether loss and
    bound agree to the tolerance.

    Args:
        steps: n, at most 8192.
        participation: how one example meets the steps.
        workload: A.
        objective: "rms" or "max".
        limits: when to stop early.
        constraint: "pattern", the optimum; "nonnegative", X >= 0 in every entry; "scalar", the optimum against scalar
            contributions, for comparison only: `lower_bound` is then the figure to compare, `loss` is for vectors,
            and the strategy refuses to be used.
        equal_norms: all columns of C have the same norm.
        tolerance: largest loss / lower_bound - 1 to stop at; by default 1e-4, and 2e-3 for "max".

    Reference: Choquette-Choo et al. 2023 (multi-epoch), Thm 3.1, Cor. 3.1 and Eqs. 34 to 36; Choquette-Choo et al.
    2023 (amplified banded), Problem 2.

    >>> from antiphase import FixedEpochs, PrefixSum
    >>> found = optimize_dense(16, FixedEpochs(4, 4), PrefixSum(), "rms", Limits(), tolerance=1e-6)
    >>> round(16 * found.loss**2, 3), round(16 * found.lower_bound**2, 3)
    (215.574, 215.574)
    """
    promise = schema(OWNER, participation, steps)
    _check_options(steps, participation, promise, constraint, equal_norms)
    accuracy = TOLERANCES[objective] if tolerance is None else tolerance
    _check.real(OWNER, "tolerance", accuracy, 1e-12, 1.0, "1e-4 is a hundredth of a percent")
    strategy: Dense | Banded
    if isinstance(participation.worst_case, MinSeparation) and promise.count > 1:
        problem = SeparatedProblem(steps, promise.separation, promise.count, workload, equal_norms)
        point, bound, converged = descend_separated(problem, objective, limits, accuracy)
        strategy = Banded(problem.columns(point))
    else:
        period = promise.separation if promise.count > 1 else steps
        found = _ascend(steps, period, workload, objective, limits, constraint, equal_norms, accuracy)
        strategy, bound, converged = Dense(_factor(found.gram())), found.bound, found.converged
    value = loss(strategy, workload, participation, objective)
    bound = min(value, math.sqrt(bound))
    result = ScalarOnly(strategy.matrix) if constraint == "scalar" and isinstance(strategy, Dense) else strategy
    return Solution(result, value, bound, limits.count, limits.elapsed, converged)


def _ascend(
    steps: int,
    period: int,
    workload: Workload,
    objective: Objective,
    limits: Limits,
    constraint: Constraint,
    equal_norms: bool,
    tolerance: float,
) -> Ascent:
    classes = Classes(steps, period)
    classed = ClassedWorkload(workload.matrix(steps), workload.inverse_bands(steps), classes)
    floor = FLOOR * tolerance
    orthogonal = OrthogonalMultipliers(classes, equal_norms, floor)
    kind: Multipliers = SignMultipliers(classes) if constraint == "scalar" else orthogonal
    rows = RowWeights(steps, objective, NONNEGATIVE_FLOOR if constraint == "nonnegative" else floor)
    dual = BlockDual(classed, kind, rows, ROUNDING * tolerance)
    start = dual.start()
    if constraint != "scalar" and halves(steps, period, workload):
        quiet = Limits(limits.seconds, limits.iterations, started=limits.started)
        close = min(tolerance, HALF_TOLERANCE)
        half = _ascend(steps // 2, period // 2, workload, objective, quiet, "pattern", equal_norms, close)
        start = spread(half.state, Classes(steps // 2, period // 2))
    found = ascend(dual, start, limits, tolerance)
    if constraint == "nonnegative" and not limits.reached:
        nonnegative = NonnegativeDual(classed, orthogonal, rows)
        found = ascend(nonnegative, nonnegative.start(found.state), limits, tolerance)
    return found


def _factor(X: Array) -> Array:
    """C lower triangular with C^T C = X.

    A plain Cholesky factor L has L L^T = X: its columns are not those of C, and taking it for C would understate the
    sensitivity. Turning X around makes it the factor that is wanted.
    """
    L = np.linalg.cholesky(X[::-1, ::-1])
    return np.ascontiguousarray(L.T[::-1, ::-1])


def _check_options(
    steps: int, participation: Participation, promise: Schema, constraint: str, equal_norms: bool
) -> None:
    if constraint not in get_args(Constraint):
        raise _check.refuse(
            OWNER, "constraint", f"one of {', '.join(get_args(Constraint))}", constraint, "'pattern' is the optimum"
        )
    if steps > LARGEST_STEPS:
        raise NotEnoughMemory(
            f"{OWNER} takes up to {LARGEST_STEPS} steps: time grows with their cube. Got {steps}.",
            hint="family='banded' or 'blt' comes close at any number of steps",
        )
    if constraint != "pattern" and isinstance(participation.worst_case, MinSeparation):
        raise InvalidArgument(
            f"{OWNER} knows constraint={constraint!r} for fixed epochs only. Got {type(participation).__name__}.",
            hint="leave the constraint out: with so many bands columns of a pattern are orthogonal",
        )
    if constraint == "scalar" and equal_norms:
        raise InvalidArgument(
            f"{OWNER} with constraint='scalar' has no equal_norms.", hint="leave one of the two options out"
        )
    if constraint == "scalar" and promise.separation * 2.0 ** (promise.count - 1) > LARGEST_SIGNS:
        raise NotEnoughMemory(
            f"{OWNER} with constraint='scalar' has a multiplier for every choice of {promise.count} signs.",
            hint="it is for small comparisons; use constraint='pattern'",
        )
