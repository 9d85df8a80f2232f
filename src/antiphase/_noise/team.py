"""A pool of threads that process the parts of a step, which are ranges of entries of the noise vector."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, final

from antiphase import _check

BACKGROUND_NICE = 10  # niceness of background threads, which should use idle time only
W = TypeVar("W")
P = TypeVar("P")


def thread_count(threads: int | None) -> int:
    """Return `threads`, or by default one thread for each processor that this process may use."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _check.positive_integer("NoiseStream", "threads", threads, "use at least one thread")


@final
@dataclass(frozen=True)
class Started:
    """Work that a background thread has begun.

    Args:
        finish: function that processes the remaining parts on all threads. It returns when all parts are done, or
            raises the first error when all threads have stopped.
        stop: function that stops handing out parts.
        background: future of the background thread's work.
    """

    finish: Callable[[], None]
    stop: Callable[[], None]
    background: Future[None]

    def abandon(self) -> None:
        """Stop handing out parts, and wait for the part in progress. Its result and any error are discarded."""
        self.stop()
        self.background.exception()


@final
class Team(Generic[W]):
    """A pool of threads. Each thread has its own worker, an object with buffers.

    The calling thread is one of them and uses the first worker.

    NumPy, Numba kernels and AES release the GIL while they process a part, so the threads run in parallel.
    """

    def __init__(self, threads: int, make_worker: Callable[[], W]) -> None:
        self._threads = threads
        self._make_worker = make_worker
        self._workers: list[W] = []
        self._pool: ThreadPoolExecutor | None = None
        self._background: ThreadPoolExecutor | None = None
        self._background_worker: W | None = None

    def run(self, task: Callable[[W, P], None], parts: Sequence[P]) -> None:
        """Call `task` once for every part. Returns, or raises the first error, after all threads have stopped."""
        count = max(min(self._threads, len(parts)), 1)
        self._work(_Queue(parts), task, count, [])

    def start(self, task: Callable[[W, P], None], parts: Sequence[P]) -> Started:
        """Start processing the parts on a background thread."""
        if self._background is None or self._background_worker is None:
            self._background = ThreadPoolExecutor(1, "antiphase-noise-ahead", _lower_priority)
            self._background_worker = self._make_worker()
        queue = _Queue(parts)
        future = self._background.submit(queue.work, task, self._background_worker)

        def finish() -> None:
            count = max(min(self._threads, len(parts)), 1)
            self._work(queue, task, count, [future])

        return Started(finish, queue.close, future)

    def _work(self, queue: _Queue[P], task: Callable[[W, P], None], count: int, others: list[Future[None]]) -> None:
        """Process the rest of the queue with `count` threads, and wait for `others`, which work on the same queue."""
        # If the wait below is interrupted, threads may go on using their workers, so the next run must use new workers.
        (workers, self._workers), (pool, self._pool) = (self._workers, []), (self._pool, None)
        others = list(others)
        try:
            workers += [self._make_worker() for _ in range(count - len(workers))]
            if count > 1:
                pool = pool or ThreadPoolExecutor(self._threads - 1, "antiphase-noise")
                others += [pool.submit(queue.work, task, worker) for worker in workers[1:count]]
            queue.work(task, workers[0])
        finally:
            queue.close()
            errors = [other.exception() for other in others]  # waits for all threads
            self._workers, self._pool = workers, pool
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Shut down the threads."""
        for pool in (self._pool, self._background):
            if pool is not None:
                pool.shutdown()
        self._pool = self._background = None


def _lower_priority() -> None:
    """Lower the priority of this thread, so that it uses idle time only. Only Linux has a priority per thread."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICE)


@final
class _Queue(Generic[P]):
    def __init__(self, parts: Sequence[P]) -> None:
        self._parts: Iterator[P] = iter(parts)
        self._lock = threading.Lock()
        self._open = True

    def work(self, task: Callable[[W, P], None], worker: W) -> None:
        """Process parts until none is left or a worker has failed."""
        try:
            while self._open:
                with self._lock:
                    part = next(self._parts, None)
                if part is None:
                    return
                task(worker, part)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop handing out parts."""
        self._open = False
