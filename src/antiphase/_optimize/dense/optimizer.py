"""Find the best strategy among all matrices, with a proved lower bound on the optimal loss."""

from __future__ import annotations

import math
from typing import Literal, NoReturn, final, get_args

import numpy as np

from antiphase import _check
from antiphase._check import Array
from antiphase._errors import InvalidArgument, NotEnoughMemory, NotProved
from antiphase._loss import loss
from antiphase._objective import Curvatures, Objective
from antiphase._optimize.dense.curvatures import solve_curvatures
from antiphase._optimize.dense.dual import BlockDual, NonnegativeDual, SortedWorkload
from antiphase._optimize.dense.dual_ascent import AscentResult, ascend
from antiphase._optimize.dense.min_separation import MinSeparationProblem, solve_min_separation
from antiphase._optimize.dense.multipliers import Multipliers, OrthogonalMultipliers, RowWeights, SignMultipliers
from antiphase._optimize.dense.residue_blocks import ResidueClasses
from antiphase._optimize.dense.warm_start import can_halve, interpolate
from antiphase._optimize.participation_limits import ParticipationLimits, worst_case_limits
from antiphase._optimize.solution import SearchLimits, Solution
from antiphase._participation import MinSeparation, Participation
from antiphase._record import record
from antiphase._workload import Workload
from antiphase.strategies import Banded, Dense, Strategy

Constraint = Literal["pattern", "nonnegative", "scalar"]

OWNER = "optimize('dense')"
MAX_DENSE_STEPS = 8192
MAX_SIGN_CHOICES = 1 << 20
DEFAULT_TOLERANCES = {"rms": 1e-4, "max": 2e-3}
CURVATURES_TOLERANCE = 0.02


def optimize_dense(
    steps: int,
    participation: Participation,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    *,
    constraint: Constraint = "pattern",
    equal_norms: bool = False,
    tolerance: float | None = None,
) -> Solution:
    """Minimise sensitivity x error over all matrices, and prove how close the result is to the optimum.

    For a single participation, participation in every step, and fixed epochs, the search minimises tr(A^T A X^-1) over
    X = C^T C by ascent on the dual problem. Under fixed epochs of b steps, one example takes part in the steps of one
    residue class modulo b. The columns of C for the steps of a residue class are constrained to be orthogonal. This
    constraint does not increase the optimal loss for vector contributions, such as gradients. The reason is that its
    Lagrange multipliers are the same matrices as those of the sensitivity constraint for vector contributions (see
    `multipliers`). So the result is the optimum for vector contributions. For minimum separation, C is constrained to
    as many bands as the separation, and the search is a descent on C.

    **Guarantee**: `lower_bound` is the value of the dual function at a feasible point, minus an allowance for rounding.
    Under fixed epochs, `constraint` determines for which matrices C the bound holds. With "pattern", it holds for all
    matrices. With "nonnegative", it holds for the matrices C for which all entries of X are non-negative. With
    "scalar", it holds for all matrices, even if their loss is computed from the sensitivity to scalar contributions,
    which is at most the sensitivity to vectors. With equal_norms, the bound holds for every C whose columns have equal
    norms and are orthogonal within a residue class. Under minimum separation, the bound holds for every C with as many
    bands as the separation. `converged` is True if loss and bound agree to the tolerance.

    Args:
        steps: number of steps, n, at most 8192.
        participation: the steps in which an example can take part.
        workload: the workload matrix, A.
        objective: the error to minimise: "rms" or "max" over the steps, or a `Curvatures` object, which averages the
            noise over directions of different curvature.
        limits: when to stop early.
        constraint: "pattern" finds the optimum. "nonnegative" finds the optimum among the matrices C for which all
            entries of X are non-negative. "scalar" finds the optimum for scalar contributions. Use "scalar" only to
            compare its `lower_bound` with that of "pattern": its `loss` is computed for vector contributions, and its
            strategy cannot be used for training.
        equal_norms: True if all columns of C must have the same norm. With equal_norms=False and `Curvatures` for the
            last iterate, early steps get much more noise than late steps, because SGD damps early noise by the end.
        tolerance: stop when loss / lower_bound - 1 is at most this. By default, 1e-4 for "rms", 2e-3 for "max" and
            0.02 for `Curvatures`.

    Reference: Choquette-Choo et al. 2023 (multi-epoch), Thm 3.1, Cor. 3.1 and Eqs. 34 to 36; Choquette-Choo et al.
    2023 (amplified banded), Problem 2.

    >>> from antiphase import FixedEpochs, PrefixSum
    >>> found = optimize_dense(16, FixedEpochs(4, 4), PrefixSum(), "rms", SearchLimits(), tolerance=1e-6)
    >>> round(16 * found.loss**2, 3), round(16 * found.lower_bound**2, 3)
    (215.574, 215.574)
    """
    allowed = worst_case_limits(OWNER, participation, steps)
    names: tuple[Constraint, ...] = get_args(Constraint)
    constraint = _check.one_of(OWNER, "constraint", constraint, names, "use 'pattern', the default")
    _check_options(steps, participation, allowed, constraint, equal_norms, objective)
    standard = CURVATURES_TOLERANCE if isinstance(objective, Curvatures) else DEFAULT_TOLERANCES[objective]
    accuracy = standard if tolerance is None else tolerance
    _check.real(OWNER, "tolerance", accuracy, 1e-12, 1.0, "use for example 1e-4, which means 0.01 %")
    strategy: Dense | Banded
    if isinstance(participation.worst_case, MinSeparation) and allowed.count > 1:
        problem = MinSeparationProblem(steps, allowed.separation, allowed.count, workload, equal_norms, objective)
        point, bound, converged = solve_min_separation(problem, objective, limits, accuracy)
        strategy = Banded(problem.columns(point))
    elif isinstance(objective, Curvatures):
        classes = ResidueClasses(steps, allowed.separation if allowed.count > 1 else steps)

        def square(X: Array) -> float:
            return loss(Dense(_factor(X)), workload, participation, objective) ** 2

        best = solve_curvatures(classes, workload, objective, limits, equal_norms, accuracy, square)
        strategy, bound, converged = Dense(_factor(best.gram)), best.bound, best.converged
    else:
        period = allowed.separation if allowed.count > 1 else steps
        found = _solve_dual(steps, period, workload, objective, limits, constraint, equal_norms, accuracy)
        strategy, bound, converged = Dense(_factor(found.gram())), found.bound, found.converged
    value = loss(strategy, workload, participation, objective)
    bound = min(value, math.sqrt(bound))
    result = ScalarOnly(strategy.matrix) if constraint == "scalar" and isinstance(strategy, Dense) else strategy
    return Solution(result, value, bound, limits.count, limits.elapsed, converged)


@final
@record
class ScalarOnly(Strategy):
    """The strategy that is optimal for scalar contributions. Use it only for comparison with vector contributions.

    A contribution is what one example adds to the sum in one step. This C was optimised for the sensitivity to
    contributions that are single numbers. The sensitivity to gradients, which are vectors, can be larger. To prevent
    training with this strategy, sensitivity, noise and everything else that needs more than `matrix` raise `NotProved`.

    Args:
        matrix: the strategy matrix, C.

    Reference: Choquette-Choo et al. 2023 (multi-epoch), Eq. 34 and App. H.2.
    """

    matrix: Array

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _check.array("ScalarOnly", "matrix", self.matrix, 2))

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Number of steps, n."""
        return len(self.matrix)

    @property
    def memory_copies(self) -> int:
        """Number of model-sized buffers: one for each step."""
        return self.steps

    def encoding_stream(self) -> NoReturn:
        """Raise `NotProved`."""
        self._raise()

    def recursion(self) -> NoReturn:
        """Raise `NotProved`."""
        self._raise()

    def _raise(self) -> NoReturn:
        raise NotProved(
            "This strategy was optimised for scalar contributions and is not optimal for gradients.",
            hint="use constraint='pattern' for training; to evaluate this strategy, use "
            "strategies.Dense(solution.strategy.matrix)",
        )


def _solve_dual(
    steps: int,
    period: int,
    workload: Workload,
    objective: Objective,
    limits: SearchLimits,
    constraint: Constraint,
    equal_norms: bool,
    tolerance: float,
) -> AscentResult:
    """Maximise the dual function, and return the result.

    If `can_halve` holds, the ascent starts from the optimum for half as many steps. For "nonnegative", a second ascent
    follows, on the dual function with this constraint.
    """
    classes = ResidueClasses(steps, period)
    sorted_workload = SortedWorkload(workload.matrix(steps), workload.inverse_bands(steps), classes)
    floor = 0.1 * tolerance
    orthogonal = OrthogonalMultipliers(classes, equal_norms, floor)
    kind: Multipliers = SignMultipliers(classes) if constraint == "scalar" else orthogonal
    rows = RowWeights(steps, objective, 0.01 if constraint == "nonnegative" else floor)
    # If rounding errors may cost up to 0.3 of the tolerance, the faster eigenvalue decomposition is accurate enough.
    dual = BlockDual(sorted_workload, kind, rows, 0.3 * tolerance)
    start = dual.start()
    if constraint != "scalar" and can_halve(steps, period, workload):
        quiet = SearchLimits(limits.seconds, limits.iterations, started=limits.started)
        close = min(tolerance, 1e-3)  # the interpolation itself has an error of about 1e-3
        half = _solve_dual(steps // 2, period // 2, workload, objective, quiet, "pattern", equal_norms, close)
        start = interpolate(half.state, ResidueClasses(steps // 2, period // 2))
    found = ascend(dual, start, limits, tolerance)
    if constraint == "nonnegative" and not limits.reached:
        nonnegative = NonnegativeDual(sorted_workload, orthogonal, rows)
        found = ascend(nonnegative, nonnegative.start(found.state), limits, tolerance)
    return found


def _factor(X: Array) -> Array:
    """Return the lower-triangular C with C^T C = X.

    The Cholesky factor L of X satisfies L L^T = X instead. Using L as C would understate the sensitivity. So the
    function reverses the order of the rows and columns of X before the factorization. Afterwards, it reverses the order
    of the rows and columns of the factor.
    """
    L = np.linalg.cholesky(X[::-1, ::-1])
    return np.ascontiguousarray(L.T[::-1, ::-1])


def _check_options(
    steps: int,
    participation: Participation,
    allowed: ParticipationLimits,
    constraint: str,
    equal_norms: bool,
    objective: Objective,
) -> None:
    if steps > MAX_DENSE_STEPS:
        raise NotEnoughMemory(
            f"{OWNER} supports at most {MAX_DENSE_STEPS} steps, because its time grows as steps^3. Got {steps}.",
            hint="use family='banded' or 'blt', which come close to the optimum for any number of steps",
        )
    if constraint != "pattern" and isinstance(objective, Curvatures):
        raise InvalidArgument(
            f"{OWNER} supports constraint={constraint!r} for the objectives 'rms' and 'max' only. Got Curvatures.",
            hint="omit the constraint",
        )
    if constraint != "pattern" and isinstance(participation.worst_case, MinSeparation):
        raise InvalidArgument(
            f"{OWNER} supports constraint={constraint!r} for fixed epochs only. Got {type(participation).__name__}.",
            hint="omit the constraint: under minimum separation, the columns of C for the steps of one example are "
            "always orthogonal",
        )
    if constraint == "scalar" and equal_norms:
        raise InvalidArgument(
            f"{OWNER} does not support constraint='scalar' together with equal_norms=True.",
            hint="omit one of the two options",
        )
    if constraint == "scalar" and allowed.separation * 2.0 ** (allowed.count - 1) > MAX_SIGN_CHOICES:
        raise NotEnoughMemory(
            f"{OWNER} with constraint='scalar' needs a multiplier for every choice of {allowed.count} signs. These are "
            "too many multipliers.",
            hint="use constraint='pattern'; for a comparison with 'scalar', use fewer participations",
        )
