"""Locks of a run.

Only one thread uses a run at a time. A write to the ledger raises an error during another write and after a failed one.

Without these locks, two threads that read the noise of the same step could get the noise of two different steps.
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
    """Run a method while holding the run's lock. Raises `Refused` if the run is closed or a ledger write failed."""

    @wraps(method)
    def locked(run: Run, /, *args: P.args, **named: P.kwargs) -> R:
        # Check before waiting: in a forked child, the thread that holds the lock does not exist, so the wait would not
        # end.
        run._journal.check_open()
        with run._thread_lock:
            run._journal.check_usable()
            before = run._calls
            try:
                run._calls = before + 1
                return method(run, *args, **named)
            finally:
                run._calls = before

    return locked


@final
class CriticalSection:
    """Context manager for a write that must complete. After an interrupted or failed write, all later writes raise.

    Ctrl-C or a signal can interrupt a program anywhere. The signal handler runs in the interrupted thread, so the lock
    of the run does not stop it. An interrupted write may leave an entry in the ledger that the run's in-memory state
    lacks, and later entries could contradict that entry.
    """

    def __init__(self) -> None:
        self._entered = False
        self.failed = False

    def check(self) -> None:
        """Raise `Refused` during a write, and always after a write that failed or was interrupted."""
        if self._entered or self.failed:
            raise Refused(
                "The run is writing to its ledger, or a write failed or was interrupted.",
                hint="close the run and open it again, which reads the current contents of the ledger",
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
    """Context manager that one caller at a time can enter. A second caller gets `Refused` immediately.

    A signal handler runs in the thread that it interrupts. With a reentrant lock, the handler could enter in the middle
    of a step. With a lock that is not reentrant, the handler would wait forever.

    Args:
        what: name of the operation, for the error message.
    """

    def __init__(self, what: str) -> None:
        self._what, self._taken = what, threading.Lock()

    def try_enter(self) -> bool:
        """Enter if no other caller is inside, and return whether this succeeded. If it did, call `leave` afterwards."""
        return self._taken.acquire(blocking=False)

    def leave(self) -> None:
        """Leave the block."""
        self._taken.release()

    def __enter__(self) -> None:
        if not self.try_enter():
            raise Refused(
                f"{self._what} is in progress, and a signal handler or another thread started it a second time.",
                hint="in a signal handler only set a flag, and check the flag between two steps",
            )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
