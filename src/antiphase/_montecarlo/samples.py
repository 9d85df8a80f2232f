"""Draws samples in blocks. Each block has its own seed, so results do not depend on which worker computes a block.

joblib runs the blocks, on threads by default. Inside `joblib.parallel_config(backend=...)`, joblib uses that backend,
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
    """Return the root of a tree of seeds, from `seed`, or from fresh entropy if `seed` is None.

    Args:
        seed: fixed seed, for tests and common random numbers; None for fresh entropy.
        path: numbers that select a branch of the tree.

    >>> randomness(1, 2).spawn_key
    (2,)
    """
    return np.random.SeedSequence(secrets.randbits(256) if seed is None else seed, spawn_key=path)


def child(seed: np.random.SeedSequence, *path: int) -> np.random.SeedSequence:
    """Return a child seed, independent of all other children."""
    return np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, *path))


def collect(
    estimator: Estimator,
    samples: int,
    seed: np.random.SeedSequence,
    reduce: Callable[[Draws], Result],
    workers: int = -1,
) -> list[Result]:
    """Draw samples in small pieces, apply `reduce` to each piece, and return the results in a fixed order.

    Only the results and a few pieces per worker are in memory at the same time.

    Args:
        estimator: estimator that draws the samples.
        samples: total number of samples.
        seed: seed of the samples; block i uses child i of this seed.
        reduce: function that is called on each piece. It must be picklable if the backend requires that.
        workers: joblib's n_jobs; -1 for all cores.
    """
    from joblib import Parallel, delayed

    counts = [min(BLOCK, samples - start) for start in range(0, samples, BLOCK)]
    jobs = (delayed(_block)(estimator, child(seed, i), count, reduce) for i, count in enumerate(counts))
    with single_threaded():
        return [piece for block in Parallel(n_jobs=workers, prefer="threads")(jobs) for piece in block]


def draws(estimator: Estimator, samples: int, seed: np.random.SeedSequence, workers: int = -1) -> Draws:
    """Return the ratios and shifts of all samples (see `Draws`), which take 16 bytes of memory per sample."""
    pieces = collect(estimator, samples, seed, _itself, workers)
    return Draws(np.concatenate([p.ratios for p in pieces]), np.concatenate([p.shifts for p in pieces]))


def single_threaded() -> AbstractContextManager[Any]:
    """Return a context manager that limits the linear algebra of NumPy and SciPy to one thread.

    The matrix products of the estimators are small and already run on joblib's threads. On a busy machine, additional
    BLAS threads can spend ten times as much time waiting for each other as working.
    """
    limit: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limit


@cache
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  # SciPy has its own BLAS library, which the controller finds only if it is loaded
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
