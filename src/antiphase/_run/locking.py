"""One thing at a time on a run: of two threads that read a step together one would get the noise of the next step."""

from __future__ import annotations

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
