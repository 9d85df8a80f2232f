"""A pool of threads that process the parts of a step."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar, final

from antiphase import _check

W = TypeVar("W")
P = TypeVar("P")


def thread_count(threads: int | None) -> int:
    """Return `threads`, or by default one thread for each processor that this process may use."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return _check.positive_integer("NoiseStream", "threads", threads, "use at least one thread")


@final
class Team(Generic[W]):
    """A pool of workers, each with its own buffers; the calling thread is the first worker.

    NumPy, Numba kernels and AES release the GIL while they process a part.
    """

    def __init__(self, threads: int, make_worker: Callable[[], W]) -> None:
        self._threads = threads
        self._make_worker = make_worker
        self._workers: list[W] = []
        self._pool: ThreadPoolExecutor | None = None

    def run(self, task: Callable[[W, P], None], parts: Sequence[P]) -> None:
        """Process every part once; return, or raise the first error, after all workers have stopped."""
        count = max(min(self._threads, len(parts)), 1)
        self._workers += [self._make_worker() for _ in range(count - len(self._workers))]
        if count == 1:
            for part in parts:
                task(self._workers[0], part)
            return
        queue = _Queue(parts)
        pool = self._pool = self._pool or ThreadPoolExecutor(self._threads - 1, "antiphase-noise")
        others: list[Future[None]] = [pool.submit(queue.work, task, worker) for worker in self._workers[1:count]]
        try:
            queue.work(task, self._workers[0])
        finally:
            queue.close()
            errors = [other.exception() for other in others]  # waits
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Shut down the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


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
