"""The function `optimize`, which finds the best strategy of a family."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from antiphase import _check
from antiphase._accounting import Budget
from antiphase._errors import InvalidArgument
from antiphase._objective import Objective, resolved
from antiphase._optimize.amplified import AmplifiedProblem, amplified_banded, amplified_blt, amplified_toeplitz
from antiphase._optimize.banded import optimize_banded
from antiphase._optimize.banded_inverse import optimize_banded_inverse
from antiphase._optimize.blt import optimize_blt
from antiphase._optimize.dense import optimize_dense
from antiphase._optimize.solution import Progress, SearchLimits, Solution
from antiphase._optimize.toeplitz import optimize_toeplitz
from antiphase._participation import BallsInBins, Participation
from antiphase._workload import PrefixSum, Workload

Optimizer = Callable[..., Solution]

OPTIMIZERS: dict[str, Optimizer] = {
    "banded": optimize_banded,
    "banded-inverse": optimize_banded_inverse,
    "blt": optimize_blt,
    "dense": optimize_dense,
    "toeplitz": optimize_toeplitz,
}
AMPLIFIED_OPTIMIZERS: dict[str, Optimizer] = {
    "banded": amplified_banded,
    "blt": amplified_blt,
    "toeplitz": amplified_toeplitz,
}


def optimize(
    family: str,
    *,
    steps: int,
    participation: Participation,
    workload: Workload = PrefixSum(),
    objective: Objective = "rms",
    time_limit: float | None = None,
    max_iterations: int | None = None,
    progress: Progress | None = None,
    budget: Budget | None = None,
    **options: Any,
) -> Solution:
    """Find the strategy in a family with the smallest loss (sensitivity x error).

    With a budget, the loss is noise_std x error instead. Here noise_std is the standard deviation of the noise that the
    budget requires under balls-in-bins sampling. Such sampling amplifies privacy, and under amplification the best
    strategies correlate the noise less. The search starts from strategies that were optimised without amplification,
    and returns the best strategy that it has evaluated, which may be one of the starting points.

    The same arguments give the same result on every run, unless the time limit stops the search. If a limit stops the
    search, the best strategy so far is returned with `converged=False`.

    Args:
        family: "banded", "banded-inverse", "blt", "dense" or "toeplitz".
        steps: number of steps, n.
        participation: the steps in which an example can take part. Unless a budget is given, a random participation is
            replaced by its worst case.
        workload: the workload matrix, A.
        objective: determines the error: "rms" or "max" takes the root mean square or the maximum over the steps. A
            `Curvatures` object measures the noise that remains in the trained model. "training" is a `Curvatures`
            object with standard values. `Curvatures` can have a second term, weighted by its argument `trajectory`:
            the noise over all steps. For Toeplitz and BLT strategies under a learning-rate schedule, the search
            evaluates this term at a few steps only. The returned loss uses all steps.
        time_limit: time limit in seconds, or None for no limit.
        max_iterations: largest number of iterations, or None for no limit.
        progress: called as progress(iteration, loss) after every iteration, with the loss that the search has reached.
        budget: the privacy budget, (epsilon, delta), or None. A budget requires the participation `BallsInBins` and one
            of the families "banded", "blt" and "toeplitz".
        options: options of the family, such as `bands`.

    >>> from antiphase import SingleParticipation
    >>> solution = optimize("toeplitz", steps=1024, participation=SingleParticipation(), bands=16)
    >>> round(solution.loss, 4), solution.converged
    (6.3428, True)
    """
    owner = "optimize"
    if family not in OPTIMIZERS:
        raise _check.invalid(owner, "family", f"one of {', '.join(OPTIMIZERS)}", family, "use the lower-case name")
    if not isinstance(participation, Participation):
        hint = "pass a participation such as SingleParticipation() or MinSeparation(100)"
        raise _check.invalid(owner, "participation", "a participation", participation, hint)
    if not isinstance(workload, Workload):
        raise _check.invalid(owner, "workload", "a workload", workload, "use PrefixSum() or Momentum(0.9)")
    n = _check.positive_integer(owner, "steps", steps, "a run has at least one step")
    objective = resolved(owner, objective)
    if time_limit is not None:
        _check.real(owner, "time_limit", time_limit, 0.0, 1e9, "pass seconds, or None for no limit")
    if max_iterations is not None:
        _check.positive_integer(owner, "max_iterations", max_iterations, "pass None for no limit")
    limits = SearchLimits(time_limit, max_iterations, progress)
    if budget is not None:
        solve = _amplified_optimizer(family, participation, budget)
        _check_options(family, solve, options)
        assert isinstance(participation, BallsInBins)
        return solve(AmplifiedProblem(n, participation, workload, objective, budget), limits, **options)
    solve = OPTIMIZERS[family]
    _check_options(family, solve, options)
    return solve(n, participation, workload, objective, limits, **options)


def _amplified_optimizer(family: str, participation: Participation, budget: Any) -> Optimizer:
    """Return the optimiser of a family under amplification.

    Raises `InvalidArgument` if the family has no such optimiser, or if the participation or the budget is not suitable.
    """
    owner = "optimize"
    if not isinstance(budget, Budget):
        raise _check.invalid(owner, "budget", "a Budget", budget, "use Budget(epsilon=8.0, delta=1e-6)")
    if not isinstance(participation, BallsInBins) or participation.max_batch is not None:
        must = "BallsInBins without max_batch if a budget is given"
        hint = "omit the budget: for other participations, the best strategy does not depend on it"
        raise _check.invalid(owner, "participation", must, participation, hint)
    if family not in AMPLIFIED_OPTIMIZERS:
        must = f"one of {', '.join(AMPLIFIED_OPTIMIZERS)} if a budget is given"
        raise _check.invalid(owner, "family", must, family, "use one of these families, or omit the budget")
    return AMPLIFIED_OPTIMIZERS[family]


def _check_options(family: str, solve: Optimizer, options: dict[str, Any]) -> None:
    known = [p.name for p in inspect.signature(solve).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise InvalidArgument(
                f"optimize('{family}') has no option {name!r}.", hint=f"its options are {', '.join(known)}"
            )
