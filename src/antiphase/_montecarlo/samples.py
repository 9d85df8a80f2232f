"""Samples in blocks: each block has a seed of its own, so results do not depend on who computes which.

Blocks run through joblib, by default on threads; inside `joblib.parallel_config(backend=...)` on whatever that names,
such as Dask or Ray over many machines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from antiphase._montecarlo.estimator import Draws, Estimator
from antiphase._montecarlo.threads import single_threaded

Result = TypeVar("Result")
BLOCK = 1 << 14  # samples that share a seed


def randomness(seed: int | None, *path: int) -> np.random.SeedSequence:
    """The root of a tree of seeds: of an integer for tests and common random numbers, else of fresh entropy.

    >>> randomness(1, 2).spawn_key
    (2,)
    """
    return np.random.SeedSequence(secrets.randbits(256) if seed is None else seed, spawn_key=path)


def child(seed: np.random.SeedSequence, *path: int) -> np.random.SeedSequence:
    """The seed of a part, independent of the seeds of all other parts."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *path))


def collect(
    estimator: Estimator,
    samples: int,
    seed: np.random.SeedSequence,
    reduce: Callable[[Draws], Result],
    workers: int = -1,
) -> list[Result]:
    """`reduce` of every piece of `samples` independent draws, in a fixed order.

    Memory is that of a few pieces for each worker, and of the results.

    Args:
        estimator: what to draw from.
        samples: how many in total.
        seed: block i draws from its i-th child.
        reduce: called on each piece; must pickle if the backend needs it.
        workers: joblib's n_jobs; -1 for all cores.
    """
    from joblib import Parallel, delayed

    counts = [min(BLOCK, samples - start) for start in range(0, samples, BLOCK)]
    jobs = (delayed(_block)(estimator, child(seed, i), count, reduce) for i, count in enumerate(counts))
    with single_threaded():
        return [piece for block in Parallel(n_jobs=workers, prefer="threads")(jobs) for piece in block]


def draws(estimator: Estimator, samples: int, seed: np.random.SeedSequence, workers: int = -1) -> Draws:
    """All draws: 16 bytes each."""
    pieces = collect(estimator, samples, seed, _itself, workers)
    return Draws(np.concatenate([p.ratios for p in pieces]), np.concatenate([p.shifts for p in pieces]))


def _block(
    estimator: Estimator, seed: np.random.SeedSequence, count: int, reduce: Callable[[Draws], Result]
) -> list[Result]:
    rng = np.random.Generator(np.random.SFC64(seed))
    return [reduce(estimator.draw(rng, piece)) for piece in _pieces(count, estimator.piece)]


def _pieces(count: int, largest: int) -> Iterator[int]:
    return (min(largest, count - start) for start in range(0, count, largest))


def _itself(given: Draws) -> Draws:
    return given
