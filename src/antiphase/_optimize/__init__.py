"""The best strategy of a family."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from antiphase import _check
from antiphase._errors import InvalidArgument
from antiphase._loss import Objective, check_objective
from antiphase._optimize._solution import Limits, Progress, Solution
from antiphase._participation import BallsInBins, Participation
from antiphase._workload import PrefixSum, Workload

if TYPE_CHECKING:
    from antiphase._accounting import Budget

FAMILIES = ("banded", "banded-inverse", "blt", "dense", "toeplitz")
AMPLIFIED = ("banded", "blt", "toeplitz")


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
    """The strategy of a family with the smallest loss, sensitivity x error.

    With a budget the loss is noise_std x error instead, with the noise that the budget needs under balls-in-bins, which
    amplifies: strategies that cancel less noise then gain more. It is never worse than the best strategy of the family
    without amplification, which the search starts from.

    The same arguments give the same result on every run. Where a limit stops the search the best so far is
    returned with `converged=False`.

    Args:
        family: "banded", "banded-inverse", "blt", "dense" or "toeplitz".
        steps: n.
        participation: how one example meets the steps; a random one counts as its worst case.
        workload: A.
        objective: "rms" or "max" over the steps.
        time_limit: seconds, or None.
        max_iterations: or None.
        progress: called as progress(iteration, loss) after every iteration.
        budget: (epsilon, delta), for `BallsInBins` and the families "banded", "blt" and "toeplitz".
        options: of the family, such as `bands`.

    >>> from antiphase import SingleParticipation
    >>> solution = optimize("toeplitz", steps=1024, participation=SingleParticipation(), bands=16)
    >>> round(solution.loss, 4), solution.converged
    (6.3428, True)
    """
    owner = "optimize"
    if family not in FAMILIES:
        raise _check.refuse(owner, "family", f"one of {', '.join(FAMILIES)}", family, "names are in lower case")
    if not isinstance(participation, Participation):
        hint = "such as SingleParticipation() or MinSeparation(100)"
        raise _check.refuse(owner, "participation", "a participation", participation, hint)
    if not isinstance(workload, Workload):
        raise _check.refuse(owner, "workload", "a workload", workload, "such as PrefixSum() or Momentum(0.9)")
    n = _check.positive_integer(owner, "steps", steps, "a run has at least one step")
    check_objective(owner, objective)
    if time_limit is not None:
        _check.real(owner, "time_limit", time_limit, 0.0, 1e9, "seconds, or None for no limit")
    if max_iterations is not None:
        _check.positive_integer(owner, "max_iterations", max_iterations, "None means no limit")
    limits = Limits(time_limit, max_iterations, progress)
    if budget is not None:
        from antiphase._optimize._amplified import Setting

        solve = _amplifying(family, participation, budget)
        _check_options(family, solve, options)
        assert isinstance(participation, BallsInBins)
        return solve(Setting(n, participation, workload, objective, budget), limits, **options)
    solve = _optimizer(family)
    _check_options(family, solve, options)
    return solve(n, participation, workload, objective, limits, **options)


def _amplifying(family: str, participation: Participation, budget: Any) -> Callable[..., Solution]:
    """The optimiser of a family under amplification."""
    from antiphase._accounting import Budget

    owner = "optimize"
    if not isinstance(budget, Budget):
        raise _check.refuse(owner, "budget", "a Budget", budget, "such as Budget(epsilon=8.0, delta=1e-6)")
    if not isinstance(participation, BallsInBins) or participation.max_batch is not None:
        hint = "otherwise the best strategy does not depend on the budget: leave it out"
        raise _check.refuse(owner, "participation", "BallsInBins without max_batch for a budget", participation, hint)
    if family not in AMPLIFIED:
        raise _check.refuse(owner, "family", f"one of {', '.join(AMPLIFIED)} for a budget", family, "or leave it out")
    solve: Callable[..., Solution] = getattr(import_module("antiphase._optimize._amplified"), f"amplified_{family}")
    return solve


def _optimizer(family: str) -> Callable[..., Solution]:
    name = family.replace("-", "_")
    solve: Callable[..., Solution] = getattr(import_module(f"antiphase._optimize._{name}"), f"optimize_{name}")
    return solve


def _check_options(family: str, solve: Callable[..., Solution], options: dict[str, Any]) -> None:
    known = [p.name for p in inspect.signature(solve).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            raise InvalidArgument(
                f"optimize('{family}') has no option {name!r}.", hint=f"its options are {', '.join(known)}"
            )
