"""Keeps noise out of tracebacks: many tools (rich, pytest -l, error trackers) record the variables of every frame."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def without_locals(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles noise: an error leaves it without the variables of the frames it came through.

    Out of memory and an interrupt can come anywhere, so every frame below is cleared, not only those that raise.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            del args, kwargs
            _forget(error)
            raise

    return call


def _forget(error: BaseException) -> None:
    """Clear the frames that an error and those before it came through, as far as they have ended."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            errors += [one.__cause__, one.__context__]
