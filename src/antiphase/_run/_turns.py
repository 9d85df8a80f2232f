"""One thread at a time on a run: of two that read a step together one would get the noise of the next step."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from antiphase._run import Run

P = ParamSpec("P")
R = TypeVar("R")


def in_turn(act: Callable[Concatenate[Run, P], R]) -> Callable[Concatenate[Run, P], R]:
    """What is done to a run, once no other thread is doing anything to it."""

    @wraps(act)
    def waiting(run: Run, /, *args: P.args, **named: P.kwargs) -> R:
        run._lock.check()  # before waiting: in a forked child the thread that has its turn may not exist
        with run._turn:
            return act(run, *args, **named)

    return waiting
