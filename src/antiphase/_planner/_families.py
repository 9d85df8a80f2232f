"""The strategies of every family that are worth a trial under a participation without amplification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import numpy as np

from antiphase._optimize import optimize
from antiphase._participation import FixedEpochs, MinSeparation, Participation, SingleParticipation
from antiphase._planner._trial import Trial
from antiphase._problem import Problem
from antiphase.strategies import BLT, Fourier, Identity, Stamped, Tree

LARGEST_DENSE = 2048  # steps
LARGEST_FOURIER = 16_384
LARGEST_BANDED = 1 << 26  # steps x bands^2: a few seconds
MOST_BUFFERS = 6

# McMahan, Xu and Zhang 2024, App. F: optimised for production, by separation.
PRODUCTION = {
    100: (
        (0.989739971007307, 0.7352001759538236, 0.16776199983448145, 0.1677619998016191),
        (0.20502892852480875, 0.23357939425278557, 0.03479503245420878, 0.03479509876050538),
    ),
    400: (
        (0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778),
        (0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734),
    ),
    1000: (
        (0.99999999999983397, 0.9973412136664378, 0.9584629472313878, 0.6581796870749317),
        (0.008657392263671862, 0.05890891298180163, 0.14548176930698697, 0.2770117005326523),
    ),
}

Family = Callable[[Problem, Participation], Iterator[Trial]]


def _identity(problem: Problem, participation: Participation) -> Iterator[Trial]:
    yield Trial("identity (DP-SGD)", Identity(problem.steps), participation)


def _tree(problem: Problem, participation: Participation) -> Iterator[Trial]:
    yield Trial("tree, online", Tree(problem.steps), participation)
    if _affords(problem, problem.steps):
        yield Trial("tree, full", Tree(problem.steps, "full"), participation)


def _fourier(problem: Problem, participation: Participation) -> Iterator[Trial]:
    if problem.steps <= LARGEST_FOURIER and _affords(problem, problem.steps):
        yield Trial("fourier, optimal decoder", Fourier(problem.steps, "optimal"), participation)


def _stamped(problem: Problem, participation: Participation) -> Iterator[Trial]:
    n = problem.steps
    for repeats in [r for r in (2, 4, 5, 8, 10, 16, 20) if n % r == 0 and n // r > 1]:
        yield Trial(f"tree, online, x {repeats}", Stamped(Tree(n // repeats), repeats), participation)
        if n // repeats <= LARGEST_FOURIER and _affords(problem, n // repeats):
            base = Fourier(n // repeats, "optimal")
            yield Trial(f"fourier, optimal decoder, x {repeats}", Stamped(base, repeats), participation)


def _toeplitz(problem: Problem, participation: Participation) -> Iterator[Trial]:
    for bands in band_counts(problem, participation):
        yield _optimized("toeplitz", f"toeplitz ({bands} bands)", problem, participation, bands=bands)


def _banded(problem: Problem, participation: Participation) -> Iterator[Trial]:
    affordable = [b for b in band_counts(problem, participation) if problem.steps * b**2 <= LARGEST_BANDED]
    for bands in affordable[-2:]:  # without amplification more bands are never worse
        yield _optimized("banded", f"banded ({bands} bands)", problem, participation, bands=bands)


def _blt(problem: Problem, participation: Participation) -> Iterator[Trial]:
    most = MOST_BUFFERS if problem.memory_copies is None else min(MOST_BUFFERS, problem.memory_copies)
    for buffers in range(1, most + 1):
        yield _optimized("blt", f"blt ({buffers} buffers)", problem, participation, buffers=buffers)
    worst = participation.worst_case
    if isinstance(worst, MinSeparation) and worst.separation in PRODUCTION:
        decay, scale = PRODUCTION[worst.separation]
        name = f"blt (4 buffers, published for separation {worst.separation})"
        yield Trial(name, BLT(np.array(decay), np.array(scale), problem.steps), participation)


def _banded_inverse(problem: Problem, participation: Participation) -> Iterator[Trial]:
    for bands in (2, 4, 8, 16):
        if bands <= problem.steps and _affords(problem, bands - 1):
            name = f"banded inverse ({bands} bands)"
            yield _optimized("banded-inverse", name, problem, participation, bands=bands)


def _dense(problem: Problem, participation: Participation) -> Iterator[Trial]:
    if problem.steps <= LARGEST_DENSE and _affords(problem, problem.steps):
        yield _optimized("dense", "dense", problem, participation)


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


def band_counts(problem: Problem, participation: Participation) -> list[int]:
    """Powers of two up to the separation, and the separation itself: beyond it columns of one example overlap."""
    worst = participation.worst_case
    if isinstance(worst, FixedEpochs):
        widest = worst.steps_per_epoch
    elif isinstance(worst, MinSeparation):
        widest = worst.separation
    else:
        widest = 64 if isinstance(worst, SingleParticipation) else 1
    widest = min(widest, problem.steps)
    if problem.memory_copies is not None:
        widest = min(widest, problem.memory_copies + 1)
    powers = [1 << i for i in range(1, 10) if 1 << i < widest]
    return [*powers, widest] if widest > 1 else []


def _optimized(family: str, name: str, problem: Problem, participation: Participation, **options: Any) -> Trial:
    start = perf_counter()
    solution = optimize(
        family,
        steps=problem.steps,
        participation=participation.worst_case,
        workload=problem.workload,
        objective=problem.objective,
        **options,
    )
    return Trial(name, solution.strategy, participation, perf_counter() - start)


def _affords(problem: Problem, copies: int) -> bool:
    return problem.memory_copies is None or copies <= problem.memory_copies
