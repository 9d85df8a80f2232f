"""Locks around a run: one thread at a time, and no second write inside or after an interrupted one.

Without them, two threads that read the noise of a step together could get the noise of two steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, final

from antiphase._errors import Refused

if TYPE_CHECKING:
    from antiphase._run.run import Run

P = ParamSpec("P")
R = TypeVar("R")


def synchronized(method: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """Run a method while holding the run's lock. Refused if the run is closed or its ledger could not be written."""

    @wraps(method)
    def locked(run: Run, /, *args: P.args, **named: P.kwargs) -> R:
        run._journal.check_open()  # before waiting: in a forked child the thread that holds the lock may not exist
        with run._thread_lock:
            run._journal.check_usable()
            return method(run, *args, **named)

    return locked


@final
class CriticalSection:
    """A write that must complete. If it is interrupted or fails, no other write can follow.

    Ctrl-C or a signal can interrupt a program anywhere, and a signal handler runs in the thread that holds the lock. If
    the ledger had an entry that the run does not know of, later entries would contradict it.
    """

    def __init__(self) -> None:
        self._entered = False
        self.failed = False

    def check(self) -> None:
        """Raise during a write, and forever after one that failed or was interrupted."""
        if self._entered or self.failed:
            raise Refused(
                "The run is writing to its ledger, or a write failed or was interrupted.",
                hint="close the run and open it again, which reads what the ledger holds",
            )

    def __enter__(self) -> None:
        self.check()
        self._entered = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.failed = kind is not None
        self._entered = False


@final
class Exclusive:
    """A block that one caller can be in at a time. A second caller is refused; it neither enters nor waits.

    A signal handler runs in the thread that it interrupts. A reentrant lock would let it into the middle of a step, and
    any other lock would wait forever.

    Args:
        what: name of the operation, for the error message.
    """

    def __init__(self, what: str) -> None:
        self._what, self._taken = what, threading.Lock()

    def __enter__(self) -> None:
        if not self._taken.acquire(blocking=False):
            raise Refused(
                f"{self._what} is in progress, and a signal handler or another thread called in the middle of it.",
                hint="in a signal handler only set a flag, and act on it between two steps",
            )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken.release()
