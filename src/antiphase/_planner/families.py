"""Defines which strategies of each family the planner tries if random sampling does not amplify privacy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from antiphase._optimize import MAX_DENSE_STEPS, optimize, prefix_sum_bound, worst_case_limits
from antiphase._participation import MinSeparation, Participation
from antiphase._plan import display_name
from antiphase._planner.published_strategies import nearest, published
from antiphase._planner.search import Proposal, Search
from antiphase._problem import Problem
from antiphase._workload import PrefixSum
from antiphase.strategies import Fourier, Identity, Stamped, Strategy, Tree

# These constants limit the work of optimizing one strategy. They limit the number of steps, steps x bands, or
# steps x bands^2, which is the cost of evaluating a banded strategy once. A banded strategy with free columns has
# separate coefficients for every column. All columns of a Toeplitz strategy have the same coefficients.
QUICK_DENSE_STEPS = 512  # with more steps, the dense family is first optimized only to within COARSE_TOLERANCE
COARSE_TOLERANCE = 0.01
MAX_FOURIER_STEPS = 16_384
QUICK_BANDED_WORK = 1 << 23  # steps x bands^2; takes seconds
MINUTE_BANDED_WORK = 1 << 26  # steps x bands^2; takes about a minute
MAX_BANDED_WORK = 1 << 30  # steps x bands^2; takes minutes; used only if free columns may give the least error
MAX_TOEPLITZ_WORK = 1 << 30  # steps x bands
MAX_INVERSE_WORK = 1 << 24  # steps x bands

# These constants define which numbers of bands, buffers and repeats to try.
MAX_FREE_COLUMN_GAIN = 0.05  # measured: for equal bands, free columns lower the error by at most this fraction
MIN_BANDS_PER_STEP = 1e-4  # measured: if bands / steps is smaller, free columns lower the error by only about 0.03 %
MIN_FREE_COLUMN_BANDS = 8
BAND_POWERS = 10  # numbers of bands to try include the powers of two below 2^10
MAX_BUFFERS = 6
MIN_BUFFER_GAIN = 0.005  # a further buffer must reduce the error by at least this fraction
STAMPED_REPEATS = (2, 4, 5, 8, 10, 16, 20)  # a stamped strategy repeats a shorter strategy this many times
INVERSE_BANDS = (2, 4, 8, 16, 32)
SMALL_BANDED_BANDS = 32  # number of bands of a second banded candidate with less memory

TryFamily = Callable[[Search, Participation], None]


def _identity(search: Search, participation: Participation) -> None:
    search.attempt(Proposal("identity", partial(Identity, search.problem.steps), participation))


def _tree(search: Search, participation: Participation) -> None:
    n = search.problem.steps
    search.attempt(Proposal("tree", partial(Tree, n), participation, variant="online"))
    if affords(search.problem, n):
        search.attempt(Proposal("tree", partial(Tree, n, "full"), participation, variant="full"))


def _fourier(search: Search, participation: Participation) -> None:
    n = search.problem.steps
    if n <= MAX_FOURIER_STEPS and affords(search.problem, n):
        search.attempt(Proposal("fourier", partial(Fourier, n, "optimal"), participation, variant="optimal decoder"))


def _stamped(search: Search, participation: Participation) -> None:
    for repeats in _dividing(search.problem.steps):
        n = search.problem.steps // repeats
        tree = partial(Stamped, Tree(n), repeats)
        search.attempt(Proposal("stamped", tree, participation, repeats, "tree, online"))
        if n <= MAX_FOURIER_STEPS and affords(search.problem, n):
            fourier = partial(Stamped, Fourier(n, "optimal"), repeats)
            search.attempt(Proposal("stamped", fourier, participation, repeats, "fourier, optimal decoder"))


def _dividing(steps: int) -> list[int]:
    """Return the numbers of repeats that divide the steps into equal parts of more than one step."""
    return [r for r in STAMPED_REPEATS if steps % r == 0 and steps // r > 1]


def _toeplitz(search: Search, participation: Participation) -> None:
    for bands in band_counts(search.problem, participation):
        search.attempt(_optimized("toeplitz", search, participation, bands, bands=bands))


def _banded(search: Search, participation: Participation) -> None:
    counts = band_counts(search.problem, participation)
    widest = [b for b in counts if search.problem.steps * b**2 <= QUICK_BANDED_WORK][-1:]
    if widest != counts[-1:] and widest < [MIN_FREE_COLUMN_BANDS]:
        widest = []  # with many steps and so few bands, free columns are no better than Toeplitz
    # Without amplification, more bands never increase the error. Fewer bands are also tried, for their lower memory.
    few = [SMALL_BANDED_BANDS] if widest > [SMALL_BANDED_BANDS] and SMALL_BANDED_BANDS in counts else []
    for bands in [*few, *widest, *_worth_the_time(search, participation, counts)]:
        search.attempt(_optimized("banded", search, participation, bands, bands=bands))


def _worth_the_time(search: Search, participation: Participation, counts: list[int]) -> list[int]:
    """Return a list with the largest number of bands for which optimizing all columns takes only minutes.

    The list is empty if optimizing takes only seconds, because `_banded` handles that case itself. It is also empty
    unless the Toeplitz strategy with that number of bands has an error close to the least error so far.
    """
    steps = search.problem.steps
    bands = max((b for b in counts if free_columns_pay(steps, b)), default=0)
    near = search.error_of("toeplitz", bands, participation) <= (1.0 + MAX_FREE_COLUMN_GAIN) * search.least_error
    return [bands] if steps * bands**2 > QUICK_BANDED_WORK and near else []


def free_columns_pay(steps: int, bands: int) -> bool:
    """Return True if optimizing every column separately takes only minutes and probably improves on Toeplitz.

    >>> free_columns_pay(65_536, 64), free_columns_pay(1_000_000, 8), free_columns_pay(1_000_000, 32)
    (True, True, False)
    """
    work = steps * bands**2
    return work <= MINUTE_BANDED_WORK or (work <= MAX_BANDED_WORK and bands >= MIN_BANDS_PER_STEP * steps)


def _blt(search: Search, participation: Participation) -> None:
    limit = search.problem.memory_copies
    best = float("inf")
    for buffers in range(1, 1 + (MAX_BUFFERS if limit is None else min(MAX_BUFFERS, limit))):
        found = search.attempt(_optimized("blt", search, participation, buffers, buffers=buffers))
        if found is None or found.candidate.error > (1.0 - MIN_BUFFER_GAIN) * best:
            break
        best = found.candidate.error
    worst = participation.worst_case
    if isinstance(worst, MinSeparation) and affords(search.problem, 4):
        separation = nearest(worst.separation)
        make, variant = partial(published, separation, search.problem.steps), f"published for separation {separation}"
        search.attempt(Proposal("blt", make, participation, 4, variant))


def _banded_inverse(search: Search, participation: Participation) -> None:
    for bands in INVERSE_BANDS:
        small = bands <= search.problem.steps and search.problem.steps * bands <= MAX_INVERSE_WORK
        if small and affords(search.problem, bands - 1):
            search.attempt(_optimized("banded-inverse", search, participation, bands, bands=bands))


def _dense(search: Search, participation: Participation) -> None:
    n, others = search.problem.steps, search.least_error
    if n > MAX_DENSE_STEPS or not affords(search.problem, least_copies("dense", n, participation)):
        return
    if _ruled_out(search, participation):
        return
    if n > QUICK_DENSE_STEPS and _has_rivals(search, participation):
        share = COARSE_TOLERANCE
        found = search.attempt(_optimized("dense", search, participation, variant=f"to {share:.0%}", tolerance=share))
        if found is None or found.candidate.error > (1.0 + share) * others:  # even the exact optimum cannot win
            return
    search.attempt(_optimized("dense", search, participation))


def _ruled_out(search: Search, participation: Participation) -> bool:
    """Return True if a lower bound on the error of all strategies proves that none beats the best candidate.

    The lower bound is a closed formula for prefix sums.
    """
    noise, problem = search.least_multiplier(participation), search.problem
    if noise is None or problem.objective not in ("rms", "max") or not isinstance(problem.workload, PrefixSum):
        return False
    promise = worst_case_limits("plan", participation, search.problem.steps, allow_shuffled=True)
    return noise * prefix_sum_bound(search.problem.steps, promise) >= search.least_error


def _has_rivals(search: Search, participation: Participation) -> bool:
    """Return True if another candidate may have less error than the best dense strategy.

    Such a candidate uses sampling or, under minimum separation, more bands than the separation.
    """
    sampled = any(found.candidate.participation != participation for found in search.evaluations)
    return sampled or (isinstance(participation.worst_case, MinSeparation) and bool(search.evaluations))


FAMILIES: dict[str, TryFamily] = {
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
    """Return the smallest number of model-sized buffers that a strategy of this family needs.

    Under minimum separation, the best dense strategy has as many bands as the separation.

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
        return Tree(steps // max(_dividing(steps), default=1)).memory_copies
    return least.get(family, steps)


def band_counts(problem: Problem, participation: Participation) -> list[int]:
    """Return the numbers of bands to try: powers of two up to the separation, and the separation itself.

    The separation is the smallest number of steps between two participations of an example. With more bands than that,
    the columns of the strategy matrix for the steps of one example would overlap.
    """
    widest = participation.worst_case.spacing(problem.steps)
    widest = min(widest, problem.steps, MAX_TOEPLITZ_WORK // problem.steps)
    if problem.memory_copies is not None:
        widest = min(widest, problem.memory_copies + 1)
    powers = [1 << i for i in range(1, BAND_POWERS) if 1 << i < widest]
    return [*powers, widest] if widest > 1 else []


def affords(problem: Problem, copies: int) -> bool:
    """Return True if the problem's memory limit allows this number of model-sized buffers."""
    return problem.memory_copies is None or copies <= problem.memory_copies


def _optimized(
    family: str,
    search: Search,
    participation: Participation,
    size: int | None = None,
    *,
    variant: str = "",
    **options: Any,
) -> Proposal:
    """Return a proposal for the strategy of a family that is best under the worst case of the participation."""
    problem, name = search.problem, display_name(family, size, variant)

    def make() -> Strategy:
        return optimize(
            family,
            steps=problem.steps,
            participation=participation.worst_case,
            workload=problem.workload,
            objective=problem.objective,
            progress=lambda iteration, loss: search.tell(f"{name}, iteration {iteration}", search.share),
            **options,
        ).strategy

    return Proposal(family, make, participation, size, variant)
