"""Reports the compilation of kernels, which happens once per machine and makes the first command slow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from antiphase._cli.output import print_message

WORTH_SAYING = 1.0  # shortest compilation that is reported, in seconds


@contextmanager
def reported(progress: Callable[[str, float], None]) -> Iterator[Callable[[str, float], None]]:
    """Show the name of each kernel while it is compiled, and print at the end how long all of them took.

    Args:
        progress: called with a description and the fraction of the work that is done.

    Yields:
        The function to call instead of `progress`.
    """
    from numba.core import event as numba_event

    event: Any = numba_event  # Numba has no types
    watch = _Watch(progress)
    listener = _listener(event, watch)
    event.register("numba:compile", listener)
    try:
        yield watch.progress
    finally:
        event.unregister("numba:compile", listener)
    if watch.seconds >= WORTH_SAYING:
        print_message(
            f"Compiled {watch.kernels} kernels for this machine in {watch.seconds:.0f} s. They are cached, so the next "
            "start will be faster."
        )


class _Watch:
    """Counts compiled kernels and measures how long they take. A kernel compiled as part of another is not counted."""

    def __init__(self, progress: Callable[[str, float], None]) -> None:
        self.kernels, self.seconds = 0, 0.0
        self._show, self._share, self._depth, self._started = progress, 0.0, 0, 0.0

    def progress(self, description: str, share: float) -> None:
        self._share = share
        self._show(description, share)

    def start(self, name: str) -> None:
        if self._depth == 0:
            self._started = perf_counter()
            self._show(f"compiling once (10 s): {name}", self._share)
        self._depth += 1

    def end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.kernels += 1
            self.seconds += perf_counter() - self._started


def _listener(event: Any, watch: _Watch) -> Any:
    class Listener(event.Listener):  # type: ignore[misc]  # Numba has no types
        def on_start(self, event: Any) -> None:
            watch.start(event.data["dispatcher"].py_func.__name__)

        def on_end(self, event: Any) -> None:
            watch.end()

    return Listener()
