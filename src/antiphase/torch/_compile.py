"""Keeps torch.compile from tracing code that handles secrets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """Wrap a function so that torch.compile never traces it. In a compiled step, each call of it is a graph break.

    `torch.compiler.disable` does the same, but imports the compiler, which takes seconds. So the wrapper calls
    `torch.compiler.disable` only if the compiler has already been imported.
    """
    disabled: list[Any] = []

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*given, **named)
        if not disabled:
            disabled.append(torch.compiler.disable(function))  # type: ignore[no-untyped-call]
        return disabled[0](*given, **named)

    return cast(F, call)
