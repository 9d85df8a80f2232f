"""What a signal handler does in the middle of other code, tried at every line of it."""

import sys
from collections.abc import Callable
from typing import Any


def at_line(
    moment: int, files: tuple[str, ...], handle: Callable[[], None], act: Callable[[], Any]
) -> tuple[Any, bool]:
    """What `act` gives where `handle` is called once, before line `moment` that it runs of `files`; and whether it was.

    Like a signal handler, `handle` is called in the thread that it interrupts.
    """
    left, before = moment, sys.gettrace()

    def local(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == -1:
                handle()  # nothing is traced inside a trace function
        return local

    def trace(frame: Any, event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename.endswith(files) else None

    sys.settrace(trace)
    try:
        return act(), left < 0
    finally:
        sys.settrace(before)
