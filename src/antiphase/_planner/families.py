"""The strategies of every family that are worth a trial under a participation without amplification."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from antiphase._optimize import MAX_DENSE_STEPS as LARGEST_DENSE
from antiphase._optimize import optimize, prefix_sum_bound
from antiphase._optimize import worst_case_limits as schema
from antiphase._participation import MinSeparation, Participation
from antiphase._planner.published_strategies import nearest, published
from antiphase._planner.trial import Trial, Trials
from antiphase._problem import Problem
from antiphase._workload import PrefixSum
from antiphase.strategies import Fourier, Identity, Stamped, Strategy, Tree

QUICK_DENSE = 512  # steps; where more are needed the dense optimum is first found to within COARSE
COARSE = 0.01
LARGEST_FOURIER = 16_384  # steps
QUICK_BANDED = 1 << 23  # steps x bands^2, the work of one evaluation
MINUTE_BANDED = 1 << 26
LARGEST_BANDED = 1 << 30  # minutes, where free columns may win
FREE_COLUMNS = 0.05  # more than they gain over a Toeplitz strategy of as many bands, by trial
SHARE_OF_STEPS = 1e-4  # bands / steps below which they gain some 0.03 %, by trial
LARGEST_TOEPLITZ = 1 << 30  # steps x bands
LARGEST_INVERSE = 1 << 24  # steps x bands
FEW_BANDS = 8
MOST_POWERS = 10
MOST_BUFFERS = 6
GAIN = 0.005  # one more buffer must lower the error by this share
REPEATS = (2, 4, 5, 8, 10, 16, 20)
INVERSE_BANDS = (2, 4, 8, 16, 32)
BANDED_BANDS = 32

Family = Callable[[Trials, Participation], None]


def _identity(trials: Trials, participation: Participation) -> None:
    trials.attempt(Trial("identity (DP-SGD)", partial(Identity, trials.problem.steps), participation))


def _tree(trials: Trials, participation: Participation) -> None:
    n = trials.problem.steps
    trials.attempt(Trial("tree, online", partial(Tree, n), participation))
    if affords(trials.problem, n):
        trials.attempt(Trial("tree, full", partial(Tree, n, "full"), participation))


def _fourier(trials: Trials, participation: Participation) -> None:
    n = trials.problem.steps
    if n <= LARGEST_FOURIER and affords(trials.problem, n):
        trials.attempt(Trial("fourier, optimal decoder", partial(Fourier, n, "optimal"), participation))


def _stamped(trials: Trials, participation: Participation) -> None:
    for repeats in [r for r in REPEATS if trials.problem.steps % r == 0 and trials.problem.steps // r > 1]:
        n = trials.problem.steps // repeats
        trials.attempt(Trial(f"tree, online, x {repeats}", partial(Stamped, Tree(n), repeats), participation))
        if n <= LARGEST_FOURIER and affords(trials.problem, n):
            name = f"fourier, optimal decoder, x {repeats}"
            trials.attempt(Trial(name, partial(Stamped, Fourier(n, "optimal"), repeats), participation))


def _toeplitz(trials: Trials, participation: Participation) -> None:
    for bands in band_counts(trials.problem, participation):
        trials.attempt(_optimized("toeplitz", f"toeplitz ({bands} bands)", trials, participation, bands=bands))


def _banded(trials: Trials, participation: Participation) -> None:
    counts = band_counts(trials.problem, participation)
    widest = [b for b in counts if trials.problem.steps * b**2 <= QUICK_BANDED][-1:]
    if widest != counts[-1:] and widest < [FEW_BANDS]:
        widest = []  # many steps and so few bands: free columns gain nothing over Toeplitz
    # Without amplification more bands are never worse; one smaller number is for those with less memory.
    few = [BANDED_BANDS] if widest > [BANDED_BANDS] and BANDED_BANDS in counts else []
    for bands in [*few, *widest, *_worth_the_time(trials, participation, counts)]:
        trials.attempt(_optimized("banded", f"banded ({bands} bands)", trials, participation, bands=bands))


def _worth_the_time(trials: Trials, participation: Participation, counts: list[int]) -> list[int]:
    """The most bands that some minutes allow, where a Toeplitz strategy with as many comes near the best so far."""
    steps = trials.problem.steps
    bands = max((b for b in counts if free_columns_pay(steps, b)), default=0)
    near = trials.error(f"toeplitz ({bands} bands)", participation) <= (1.0 + FREE_COLUMNS) * trials.least_error
    return [bands] if steps * bands**2 > QUICK_BANDED and near else []


def free_columns_pay(steps: int, bands: int) -> bool:
    """Whether columns that differ from one another can be had in minutes and gain something over Toeplitz.

    >>> free_columns_pay(65_536, 64), free_columns_pay(1_000_000, 8), free_columns_pay(1_000_000, 32)
    (True, True, False)
    """
    work = steps * bands**2
    return work <= MINUTE_BANDED or (work <= LARGEST_BANDED and bands >= SHARE_OF_STEPS * steps)


def _blt(trials: Trials, participation: Participation) -> None:
    limit = trials.problem.memory_copies
    best = float("inf")
    for buffers in range(1, 1 + (MOST_BUFFERS if limit is None else min(MOST_BUFFERS, limit))):
        name = f"blt ({buffers} buffer{'s' if buffers > 1 else ''})"
        found = trials.attempt(_optimized("blt", name, trials, participation, buffers=buffers))
        if found is None or found.candidate.error > (1.0 - GAIN) * best:
            break
        best = found.candidate.error
    worst = participation.worst_case
    if isinstance(worst, MinSeparation) and affords(trials.problem, 4):
        separation = nearest(worst.separation)
        name = f"blt (4 buffers, published for separation {separation})"
        trials.attempt(Trial(name, partial(published, separation, trials.problem.steps), participation))


def _banded_inverse(trials: Trials, participation: Participation) -> None:
    for bands in INVERSE_BANDS:
        small = bands <= trials.problem.steps and trials.problem.steps * bands <= LARGEST_INVERSE
        if small and affords(trials.problem, bands - 1):
            name = f"banded inverse ({bands} bands)"
            trials.attempt(_optimized("banded-inverse", name, trials, participation, bands=bands))


def _dense(trials: Trials, participation: Participation) -> None:
    n, others = trials.problem.steps, trials.least_error
    if n > LARGEST_DENSE or not affords(trials.problem, least_copies("dense", n, participation)):
        return
    if _ruled_out(trials, participation):
        return
    if n > QUICK_DENSE and _has_rivals(trials, participation):
        name = f"dense (to {COARSE:.0%})"
        found = trials.attempt(_optimized("dense", name, trials, participation, tolerance=COARSE))
        if found is None or found.candidate.error > (1.0 + COARSE) * others:  # not even the optimum itself
            return
    trials.attempt(_optimized("dense", "dense", trials, participation))


def _ruled_out(trials: Trials, participation: Participation) -> bool:
    """Whether no matrix at all is better than what sampling has amplified, by the closed bound for prefix sums."""
    noise = trials.least_multiplier(participation)
    if noise is None or not isinstance(trials.problem.workload, PrefixSum):
        return False
    promise = schema("plan", participation, trials.problem.steps, allow_shuffled=True)
    return noise * prefix_sum_bound(trials.problem.steps, promise) >= trials.least_error


def _has_rivals(trials: Trials, participation: Participation) -> bool:
    """Whether anything tried may be better than the dense optimum: sampling, or more bands than the separation."""
    sampled = any(found.candidate.participation != repr(participation) for found in trials.outcomes)
    return sampled or (isinstance(participation.worst_case, MinSeparation) and bool(trials.outcomes))


FAMILIES: dict[str, Family] = {
    "identity": _identity,
    "tree": _tree,
    "fourier": _fourier,
    "stamped": _stamped,
    "toeplitz": _toeplitz,
    "banded": _banded,
    "banded-inverse": _banded_inverse,
    "blt": _blt,
    "dense": _dense,
}


def least_copies(family: str, steps: int, participation: Participation | None = None) -> int:
    """The fewest model-sized buffers with which a family can be tried.

    The dense optimum under a minimum separation has as many bands as that.

    >>> least_copies("identity", 100), least_copies("dense", 100), least_copies("dense", 100, MinSeparation(20))
    (0, 100, 19)
    """
    worst = None if participation is None else participation.worst_case
    if family == "dense" and isinstance(worst, MinSeparation) and worst.largest_count(steps) > 1:
        return worst.separation - 1
    least = {"identity": 0, "toeplitz": 1, "banded": 1, "banded-inverse": 1, "blt": 1}
    if family == "tree":
        return Tree(steps).memory_copies
    if family == "stamped":
        fitting = [r for r in REPEATS if steps % r == 0 and steps // r > 1]
        return Tree(steps // max(fitting, default=1)).memory_copies
    return least.get(family, steps)


def band_counts(problem: Problem, participation: Participation) -> list[int]:
    """Powers of two up to the separation, and the separation itself: beyond it columns of one example overlap."""
    widest = participation.worst_case.spacing(problem.steps)
    widest = min(widest, problem.steps, LARGEST_TOEPLITZ // problem.steps)
    if problem.memory_copies is not None:
        widest = min(widest, problem.memory_copies + 1)
    powers = [1 << i for i in range(1, MOST_POWERS) if 1 << i < widest]
    return [*powers, widest] if widest > 1 else []


def affords(problem: Problem, copies: int) -> bool:
    """Whether the memory limit leaves room for so many model-sized buffers."""
    return problem.memory_copies is None or copies <= problem.memory_copies


def _optimized(family: str, name: str, trials: Trials, participation: Participation, **options: Any) -> Trial:
    problem = trials.problem

    def make() -> Strategy:
        return optimize(
            family,
            steps=problem.steps,
            participation=participation.worst_case,
            workload=problem.workload,
            objective=problem.objective,
            progress=lambda iteration, loss: trials.tell(f"{name}, iteration {iteration}", trials.share),
            **options,
        ).strategy

    return Trial(name, make, participation)
