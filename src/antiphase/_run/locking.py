"""One thing at a time on a run: of two threads that read a step together one would get the noise of the next step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, final

from antiphase._errors import Refused

if TYPE_CHECKING:
    from antiphase._run import Run

P = ParamSpec("P")
R = TypeVar("R")


def in_turn(act: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """Run a method while no other thread uses the run; refused where the run has become unusable."""

    @wraps(act)
    def waiting(run: Run, /, *args: P.args, **named: P.kwargs) -> R:
        run._lock.check()  # before waiting: in a forked child the thread that has its turn may not exist
        with run._turn:
            run._check_usable()
            return act(run, *args, **named)

    return waiting


@final
class ToTheEnd:
    """Around what must be done as a whole: begun and not ended, it is not begun again.

    A key press or a signal stops a program anywhere, and what handles a signal runs in the thread that has its turn. An
    entry that the ledger has and the run does not know of would be followed by entries that cannot follow it.
    """

    def __init__(self) -> None:
        self._begun = False
        self.failed = False

    def check(self) -> None:
        """Raise in the middle of a write, and for good after one that failed or was interrupted."""
        if self._begun or self.failed:
            raise Refused(
                "The run is writing to its ledger, or failed or was interrupted while it did.",
                hint="close the run and open it again: what the ledger has is known then",
            )

    def __enter__(self) -> None:
        self.check()
        self._begun = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.failed = kind is not None
        self._begun = False


@final
class Exclusive:
    """Around what one caller does at a time, where a second one is refused instead of let in or made to wait.

    A signal handler runs in the thread that it interrupts. A lock that this thread may take again lets the handler into
    the middle of a step; one that it may not take again waits for ever.

    Args:
        what: is under way, for the refusal.
    """

    def __init__(self, what: str) -> None:
        self._what, self._taken = what, threading.Lock()

    def __enter__(self) -> None:
        if not self._taken.acquire(blocking=False):
            raise Refused(
                f"{self._what} is under way, and a signal handler or another thread asked in the middle of it.",
                hint="in a signal handler only set a flag, and act on it between two steps",
            )

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._taken.release()
