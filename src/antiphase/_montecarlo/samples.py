"""Draw samples in blocks, each with its own seed, so that results do not depend on which worker computes a block.

Blocks run through joblib: on threads by default, and inside `joblib.parallel_config(backend=...)` on that backend,
such as Dask or Ray on many machines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import numpy as np

from antiphase._montecarlo.estimator import Draws, Estimator

Result = TypeVar("Result")
BLOCK = 1 << 14  # samples that share a seed


def randomness(seed: int | None, *path: int) -> np.random.SeedSequence:
    """The root of a tree of seeds: from `seed` for tests and common random numbers, from fresh entropy without one.

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
    """Apply `reduce` to every piece of `samples` independent draws and return the results in a fixed order.

    Holds a few pieces per worker and the results in memory.

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
    """Return all draws, at 16 bytes each."""
    pieces = collect(estimator, samples, seed, _itself, workers)
    return Draws(np.concatenate([p.ratios for p in pieces]), np.concatenate([p.shifts for p in pieces]))


def single_threaded() -> AbstractContextManager[Any]:
    """Limit the linear algebra of NumPy and SciPy to one thread.

    The products here are small and many, and already run on joblib's threads. On a busy machine, more BLAS threads on
    top of these can wait for each other ten times as long as they work.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limit


@cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  # brings a BLAS library of its own, which must be loaded to be found
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def _block(
    estimator: Estimator, seed: np.random.SeedSequence, count: int, reduce: Callable[[Draws], Result]
) -> list[Result]:
    rng = np.random.Generator(np.random.SFC64(seed))
    return [reduce(estimator.draw(rng, piece)) for piece in _pieces(count, estimator.piece)]


def _pieces(count: int, largest: int) -> Iterator[int]:
    return (min(largest, count - start) for start in range(0, count, largest))


def _itself(given: Draws) -> Draws:
    return given
