"""Keeps noise, batches and keys out of tracebacks.

Many tools (rich, pytest -l, error trackers) record the local variables of every frame in a traceback.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def without_locals(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that handles noise, batches or keys, so that its errors contain no local variables.

    An interrupt, a full disk or a lack of memory can raise an error in any frame, so the variables of all called
    functions are cleared.
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
    """Clear the local variables of all finished frames in the tracebacks of an error, its causes and its contexts."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            errors += [one.__cause__, one.__context__]
