"""Every error that the library raises.

AntiphaseError
+-- InvalidArgument      an argument has an invalid value (also a ValueError)
+-- NotProved            no theorem covers the requested combination
+-- NotEnoughMemory      the computation does not fit in memory (also a MemoryError)
+-- Corrupted            a stored file was changed or truncated, or was written for another run or secret
+-- Refused              the action would break the guarantee
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class AntiphaseError(Exception):
    """Base class of every error that the library raises.

    The message says what was wrong; `hint`, after a blank line, says how to fix it.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}\n\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint


class InvalidArgument(AntiphaseError, ValueError):
    """An argument has an invalid value."""


class NotProved(AntiphaseError):
    """No theorem covers the requested combination, so no guarantee can be given."""


class NotEnoughMemory(AntiphaseError, MemoryError):
    """A computation would not fit in memory."""


@contextmanager
def enough_memory(purpose: str, *, hint: str) -> Iterator[None]:
    """Raise `NotEnoughMemory` in place of any other `MemoryError`. `purpose` says what the memory is needed for."""
    try:
        yield
    except NotEnoughMemory:
        raise
    except MemoryError as error:
        raise NotEnoughMemory(f"There is not enough memory to {purpose}.", hint=hint) from error


class Corrupted(AntiphaseError):
    """A stored file was changed or truncated, or was written for another run or secret."""


class Refused(AntiphaseError):
    """The action would break the privacy guarantee.

    Examples are replaying a step with different data, taking a step past the end of the run, and opening a run that
    another process is using.
    """
